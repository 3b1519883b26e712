#!/usr/bin/env bash
# Load a running installation by siege: POSTs over keep-alive connections. Start bin/up in another terminal first.
#
#   bench/siege.sh [--concurrent=64] [--reps=3000] [options of siege]    users, and requests per user
#
# It ends after a number of requests. With --time, siege 4.0.7 cancels its threads wherever they are; one that is
# cancelled inside malloc waits for a lock that it holds itself, and siege blocks TERM and INT.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
port=${INGEST_PORT:-8080}
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
limit = 65535
show-logfile = false
logging = false
verbose = false
RC
sed "s/localhost:8080/localhost:$port/" bench/urls.txt >"$HOME/urls.txt"

echo "$(nproc) cores, $(uname -sr), durability of the system: ${INGEST_DURABILITY:-always, unless bin/up was told otherwise}"
siege --rc="$HOME/siegerc" --file="$HOME/urls.txt" --benchmark --concurrent=64 --reps=3000 \
    --content-type=application/json "$@" 2>&1
