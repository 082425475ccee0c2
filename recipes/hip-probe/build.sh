#!/usr/bin/env bash
# Compiles hip-probe for GPU_TARGETS (gfx1201,gfx90a:xnack+,gfx12-generic) and installs it below /rocbake/dist.
# Runs in a build container without network; /rocbake/recipe is read-only. The folders can be moved by the variables below, for work on the recipe.
set -euo pipefail
umask 022

: "${GPU_TARGETS:?name the GPU targets, separated by commas}" "${SOURCE_DATE_EPOCH:?}"
recipe=${ROCBAKE_RECIPE_DIR:-/rocbake/recipe}
build=${ROCBAKE_BUILD_DIR:-/rocbake/build}
dist=${ROCBAKE_DIST_DIR:-/rocbake/dist}

if ! compiler=$(command -v hipcc); then
    echo "build.sh: hipcc is not on PATH; this recipe needs a container with the HIP SDK" >&2
    exit 1
fi

# One set, one binary: neither the order nor a repetition may change it.
readarray -t targets < <(tr ',' '\n' <<<"$GPU_TARGETS" | sort -u)
compiled_for=$(IFS=,; echo "${targets[*]}")

flags=(
    -std=c++20 -O2 -fPIE
    -Wall -Wextra -Werror -Werror=date-time
    "-ffile-prefix-map=$recipe/src=hip-probe" "-ffile-prefix-map=$build=build"
    "-DHIP_PROBE_COMPILED_FOR=\"$compiled_for\""
)
# Clang names each HIP unit by a hash of its command line (the CUID) unless it is told not to, and the output's name is in that line.
device_flags=(-fuse-cuid=none "${targets[@]/#/--offload-arch=}")
# Nothing here depends on where the libraries lie at build time: no RPATH, and a build id made of the content.
link_flags=(-pie -s "-Wl,--build-id=sha1" "-Wl,--as-needed" "-Wl,-z,relro" "-Wl,-z,now")

mkdir -p "$build"
objects=()
commands=()
for source in "$recipe"/src/*.cpp "$recipe"/src/*.hip; do
    object=$build/$(basename "$source").o
    case $source in
        *.hip) language=("${device_flags[@]}") ;;
        *) language=(-x c++ -D__HIP_PLATFORM_AMD__) ;;
    esac
    objects+=("$object")
    commands+=("$(printf '%q ' "$compiler" "${flags[@]}" "${language[@]}" -c "$source" -o "$object")")
done
printf '%s\0' "${commands[@]}" | xargs -0 -n 1 -P "${JOBS:-$(nproc)}" bash -c

install -d -m 0755 "$dist/bin" "$dist/share/doc/hip-probe"
"$compiler" "${objects[@]}" "${link_flags[@]}" -o "$build/hip-probe"
install -m 0755 "$build/hip-probe" "$dist/bin/hip-probe"
install -m 0644 "$recipe/src/README.md" "$dist/share/doc/hip-probe/README.md"
