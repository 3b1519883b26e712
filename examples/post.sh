#!/bin/sh
# Post a body, with retries: curl waits as long as Retry-After says, or longer before each retry.
#
#   examples/post.sh http://localhost:8080/votes '{"poll":"cookies","choice":"oreo"}'
#
# curl retries after 408, 429, 500, 502, 503 and 504. After 500, 502 and 504 it is unknown whether the body was
# accepted, so a retry may store it twice. If duplicates matter, put a key into the data, or leave out --retry.
exec curl --silent --show-error --fail-with-body --retry 10 --retry-max-time 600 --data-binary "$2" "$1"
