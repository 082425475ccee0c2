#!/usr/bin/env bash
# Runs the make step of the Elixir package xla, without Elixir, and leaves what its archive holds in
# /rocbake/dist.
set -euo pipefail
umask 022

: "${GPU_TARGETS:?}" "${VERSION:?}" "${STAGE:?}"
build=/rocbake/build
package=$build/package
archive=$build/archive/xla_extension-$VERSION-x86_64-linux-gnu-rocm.tar.gz
export ROCM_PATH=/opt/rocm HIP_CLANG_PATH=/opt/rocm/lib/llvm/bin XLA_TARGET=rocm
# The upstream's names of compilers, as its flags have them.
export PATH=/usr/lib/llvm-18/bin:$PATH

tool() { python3 -B /rocbake/tools/bazel.py "$@"; }
die() { echo "error: $*" >&2; exit 1; }
# A folder is there whole or not at all: make takes one that is there for finished.
unpack() {
    local tar=$1 place=$2
    mkdir -p "$place.part"
    tar -xf "$tar" -C "$place.part" --strip-components=1
    mv "$place.part" "$place"
}

for tar in /rocbake/sources/xla-*.tar; do
    # To its end: what stops listening early makes tar fail.
    if tar -tf "$tar" | grep -x 'xla-[0-9a-f]*/mix\.exs' >/dev/null; then
        unpack "$tar" "$package"
    else
        tree=$tar
    fi
done
[ -d "$package" ] || die "no source is the Elixir package xla: none has a mix.exs"
[ -n "${tree:-}" ] || die "no source is OpenXLA: each has a mix.exs"
revision=$(sed -n 's/^OPENXLA_GIT_REV ?= *\([0-9a-f]*\).*/\1/p' "$package/Makefile")
[ "$(basename "$tree" .tar)" = "xla-$revision" ] ||
    die "the package wants OpenXLA $revision, and recipe.yaml names $(basename "$tree" .tar)"
found=$(sed -n 's/^ *@version "\(.*\)"$/\1/p' "$package/mix.exs")
[ "$found" = "$VERSION" ] || die "the package is xla $found, and recipe.yaml says $VERSION"

# What the Makefile does to a clone: its patches, and no say about Bazel's version.
workspace=$build/cache/xla-$revision
unpack "$tree" "$build/tree"
cp -r "$package/extension/patches" "$build/tree/"
(cd "$build/tree" && bash patches/apply.sh)
rm -f "$build/tree/.bazelversion"
mkdir -p "$build/cache"
mv "$build/tree" "$workspace"
ln -sfn "$package/extension" "$workspace/xla/extension"

tool preflight "$workspace"
if [ "$STAGE" = deps ]; then
    tool deps "$workspace"
    exit 0
fi
mkdir -p "$(dirname "$archive")"
tool make "$package" "$workspace" "$archive"

# Unpacked, so that it is packed again with neither the times of this moment nor Bazel's rights.
mkdir -p /rocbake/dist
tar -xzf "$archive" -C /rocbake/dist --strip-components=1
[ -f /rocbake/dist/lib/libxla_extension.so ] || die "the archive has no lib/libxla_extension.so"
[ -d /rocbake/dist/include ] || die "the archive has no include/"
find /rocbake/dist -type f -exec chmod 0644 {} +
# Not for the processor alone, whatever it is called.
if ! grep -aq 'libamdhip64\.so' /rocbake/dist/lib/libxla_extension.so; then
    die "libxla_extension.so knows nothing of HIP: it was built for the processor alone"
fi
