#!/usr/bin/env bash
# Builds the workspace beside this script, from what was downloaded before.
set -euo pipefail
umask 022

cp -r /rocbake/recipe/workspace /rocbake/build/workspace
# What begins with a dot belongs to editors and version control, and is no recipe's.
mv /rocbake/build/workspace/bazelrc /rocbake/build/workspace/.bazelrc
if [ "$STAGE" = deps ]; then
    exec python3 -B /rocbake/tools/bazel.py deps /rocbake/build/workspace
fi
python3 -B /rocbake/tools/bazel.py build /rocbake/build/workspace
mkdir -p /rocbake/dist
tar -xzf workspace/bazel-bin/lib/greeting.tar.gz -C /rocbake/dist --strip-components=1
# Bazel makes everything a program, and who may write it depends on which cache it came from.
find /rocbake/dist -type f -exec chmod 0644 {} +
chmod 0755 /rocbake/dist/lib/greet
