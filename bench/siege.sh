#!/usr/bin/env bash
# Besiege the running system: POSTs over kept connections, for a bounded time. bin/up runs in another terminal.
#
#   [CLIENTS=64] [SECONDS_LONG=20] bench/siege.sh [further options of siege]
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
clients=${CLIENTS:-64} seconds=${SECONDS_LONG:-20} port=${INGEST_PORT:-8080}
bin/provision siege
if ! (exec 3<>"/dev/tcp/localhost/$port") 2>/dev/null; then
    echo "sluice: nothing listens on port $port; start bin/up in another terminal" >&2
    exit 1
fi

HOME=$(mktemp -d) # siege writes a configuration and cookies into it
export HOME
trap 'rm -rf "$HOME"' EXIT
cat >"$HOME/siegerc" <<RC
protocol = HTTP/1.1
connection = keep-alive
parser = false
limit = $clients
show-logfile = false
logging = false
verbose = false
RC
sed "s/localhost:8080/localhost:$port/" bench/urls.txt >"$HOME/urls.txt"

echo "siege $(siege --version 2>&1 | sed -n 's/^SIEGE //p'): $clients clients for $seconds s on http://localhost:$port"
echo "$(nproc) cores, $(uname -sr), durability of the system: ${INGEST_DURABILITY:-always, unless bin/up was told otherwise}"
exec_siege=(siege --rc="$HOME/siegerc" --file="$HOME/urls.txt" --benchmark --concurrent="$clients" --time="${seconds}S"
    --content-type=application/json)
timeout $((seconds + 15)) "${exec_siege[@]}" "$@" 2>&1
