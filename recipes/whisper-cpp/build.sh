#!/usr/bin/env bash
# Builds whisper.cpp with ggml's HIP backend for GPU_TARGETS, and leaves it in /rocbake/dist.
# What it needs of ROCm goes to /rocbake/bundle, what only tests need to /rocbake/tests.
set -euo pipefail
umask 022

: "${GPU_TARGETS:?}" "${SOURCE_DATE_EPOCH:?}" "${VERSION:?}" "${OPTIONS:?}"
recipe=/rocbake/recipe
dist=/rocbake/dist
prefix=/opt/whisper-cpp
source=/rocbake/build/whisper.cpp
build=/rocbake/build/tree

ggml() { python3 -B /rocbake/tools/ggml.py "$@"; }
die() { echo "error: $*" >&2; exit 1; }
option() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" <<<"$OPTIONS"; }
# CMake's word for an option, and for its opposite.
on() { case $(option "$1") in on) echo ON ;; off) echo OFF ;; *) die "option $1 is neither on nor off: $OPTIONS" ;; esac; }
not() { case $(on "$1") in ON) echo OFF ;; OFF) echo ON ;; *) exit 1 ;; esac; }

# One a line: a failure inside an argument would go unheard.
no_vmm=$(not vmm)
graphs=$(on graphs)

ggml preflight

# CMake writes into this source folder, and sources are mounted read-only.
mkdir -p "$source"
tar -xzf /rocbake/sources/pywhispercpp-*.tar.gz -C "$source" --strip-components=2 --wildcards '*/whisper.cpp'
tar -xzf /rocbake/sources/ggml_python-*.tar.gz -C /rocbake/build --strip-components=4 \
    --wildcards '*/vendor/ggml/tests/test-backend-ops.cpp'
found=$(sed -n 's/^project("whisper.cpp" VERSION \(.*\))/\1/p' "$source/CMakeLists.txt")
[ "$found" = "$VERSION" ] || die "the source is whisper.cpp $found, and recipe.yaml says $VERSION"

# The processor's code comes as one loadable library for each kind of processor; the one that fits is
# chosen where it runs.
ggml configure "$source" "$build" whisper.cpp -- \
    -DCMAKE_INSTALL_PREFIX=$prefix \
    -DBUILD_SHARED_LIBS=ON \
    -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON -DGGML_CCACHE=OFF \
    -DGGML_HIP=ON "-DGGML_HIP_NO_VMM=$no_vmm" "-DGGML_HIP_GRAPHS=$graphs" \
    -DGGML_HIP_ROCWMMA_FATTN=OFF \
    -DWHISPER_BUILD_TESTS=OFF -DWHISPER_BUILD_EXAMPLES=ON -DWHISPER_BUILD_SERVER=ON
# For work on the recipe: some files of the build tree, and no product.
if [ -n "${ROCBAKE_ONLY:-}" ]; then
    read -ra only <<<"$ROCBAKE_ONLY"
    ggml compile "$build" "${only[@]}"
    exit 0
fi
ggml compile "$build"
DESTDIR=/rocbake/build/install cmake --install "$build" --strip

mkdir -p "$dist"
cp -a "/rocbake/build/install$prefix/." "$dist/"
# pkg-config then finds it wherever the archive is unpacked.
# shellcheck disable=SC2016 # pkg-config replaces it
find "$dist" -name '*.pc' -exec sed -i 's|^prefix=.*|prefix=${pcfiledir}/../..|' {} +
install -Dm 0644 "$source/LICENSE" "$dist/share/doc/whisper-cpp/LICENSE"
install -Dm 0644 "$recipe/README.md" "$dist/share/doc/whisper-cpp/README.md"
for program in whisper-cli whisper-server whisper-bench whisper-quantize; do
    [ -x "$dist/bin/$program" ] || die "the build made no $program"
done
[ -f "$dist/bin/libggml-hip.so" ] || die "the build made no libggml-hip.so: this would run on the processor alone"

# Against what is installed, and not against the build's own tree.
ggml configure "$recipe/tests" /rocbake/build/tests tests -- \
    "-DCMAKE_PREFIX_PATH=$dist" -DCMAKE_INSTALL_PREFIX=/rocbake/tests \
    -DGGML_TEST_SOURCE=/rocbake/build/test-backend-ops.cpp
ggml compile /rocbake/build/tests
cmake --install /rocbake/build/tests --strip
install -Dm 0644 -t /rocbake/tests/models "$source"/models/for-tests-*.bin
install -Dm 0644 -t /rocbake/tests/samples "$source/samples/jfk.wav"

ggml bundle "$dist" /rocbake/bundle
