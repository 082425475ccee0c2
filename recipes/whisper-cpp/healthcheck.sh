#!/bin/bash
# Tells the engine whether whisper-server answers; a container that runs something else is healthy.
set -euo pipefail
read -r -d '' program </proc/1/cmdline || true
[[ ${program##*/} == whisper-server ]] || exit 0
exec 3<>/dev/tcp/127.0.0.1/"${WHISPER_PORT:-8080}"
printf 'GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3
grep -q '"status":"ok"' <&3
