#!/bin/sh
# Post a body, with retries: curl waits as long as Retry-After says, or longer before each retry.
#
#   examples/post.sh http://localhost:8080/votes '{"poll":"cookies","choice":"oreo"}'
#
# curl retries after 408, 429, 500, 502, 503, 504 and a timeout. The key makes all attempts one.
key=$(cat /proc/sys/kernel/random/uuid)
exec curl --silent --show-error --fail-with-body --retry 10 --retry-max-time 600 --header "Idempotency-Key: $key" \
    --data-binary "$2" "$1"
