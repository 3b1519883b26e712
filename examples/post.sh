#!/bin/sh
# Post a body and be patient: curl waits as long as Retry-After says, or a little longer each time.
#
#   examples/post.sh http://localhost:8080/votes '{"poll":"cookies","choice":"oreo"}'
#
# curl repeats after 408, 429, 500, 502, 503 and 504. After 500, 502 and 504 nobody knows whether the body was taken: it
# may be stored twice. Where once counts, put a key into the data, or leave out --retry.
exec curl --silent --show-error --fail-with-body --retry 10 --retry-max-time 600 --data-binary "$2" "$1"
