#!/bin/sh
# Runs once, as root, before the services that own these directories. Docker makes volumes root's.
set -eu

root=${GATEHOUSE_DIRS:-/dirs}

# give DIRECTORY OWNER: a whole tree changes hands once, when its root still belongs to somebody else.
give() {
    [ "$(stat -c %u:%g "$1")" = "$2" ] || chown -R "$2" "$1"
}

give "$root"/caddy-data 2002:2002
for cache in "$root"/vllm-cache*; do
    give "$cache" 2000:0
done

# The models may stand in a directory of the operator's: what is in use there stays as it is.
[ -n "$(ls -A "$root/models")" ] || give "$root/models" 2000:0
