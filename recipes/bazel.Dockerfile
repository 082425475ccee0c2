# How recipes are built that Bazel builds. The contexts are those of the Dockerfile beside it, and
# `built`, which is one of the two stages that build; the same script runs in all of them, and STAGE
# tells it which.
FROM sdk AS prepared
ARG SOURCE_DATE_EPOCH
ARG GPU_TARGETS
ARG VERSION
ARG OPTIONS
ARG JOBS
ARG CCACHE
ARG SDK
ARG BAZEL
# Bazel hands it to actions, and it is part of their keys.
ENV HOME=/rocbake/home
WORKDIR /rocbake/home
WORKDIR /rocbake/bundle
WORKDIR /rocbake/tests
WORKDIR /rocbake/deps
WORKDIR /rocbake/build

# The one step of any build that has a network. All that it may leave is files that are named by
# their digests; all of them together have one more, which the lock holds.
FROM prepared AS downloading
RUN --network=default \
    --mount=type=bind,from=recipe,target=/rocbake/recipe \
    --mount=type=bind,from=sources,target=/rocbake/sources \
    --mount=type=bind,from=tools,target=/rocbake/tools \
    --mount=type=bind,from=runtime,source=/opt,target=/opt \
    STAGE=deps /rocbake/recipe/build.sh

FROM scratch AS deps
COPY --from=downloading /rocbake/deps /

FROM prepared AS building
RUN --network=none \
    --mount=type=bind,from=recipe,target=/rocbake/recipe \
    --mount=type=bind,from=sources,target=/rocbake/sources \
    --mount=type=bind,from=tools,target=/rocbake/tools \
    --mount=type=bind,from=runtime,source=/opt,target=/opt \
    --mount=type=cache,id=rocbake-bazel,target=/rocbake/disk-cache \
    STAGE=build /rocbake/recipe/build.sh

# The same, with Bazel's remote cache or remote execution. It still downloads nothing but actions
# and what they gave; logins are in no layer and no log.
FROM prepared AS building-remotely
ARG REMOTE
RUN --network=default \
    --mount=type=bind,from=recipe,target=/rocbake/recipe \
    --mount=type=bind,from=sources,target=/rocbake/sources \
    --mount=type=bind,from=tools,target=/rocbake/tools \
    --mount=type=bind,from=runtime,source=/opt,target=/opt \
    --mount=type=secret,id=netrc,target=/rocbake/home/.netrc \
    STAGE=build /rocbake/recipe/build.sh

FROM scratch AS dist
COPY --from=built /rocbake/dist /

FROM scratch AS bundle
COPY --from=built /rocbake/bundle /

FROM scratch AS tests
COPY --from=built /rocbake/tests /
