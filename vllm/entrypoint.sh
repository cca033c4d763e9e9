#!/bin/sh
# Starts vLLM as the profile says. Works in every vllm/vllm-openai image from v0.16.0 on.
set -eu

profile=${GATEHOUSE_ENGINE_PROFILE:-/etc/gatehouse/profile.yaml}
key_file=${GATEHOUSE_ENGINE_KEY_FILE:-/run/secrets/engine_api_key}
# Docker starts this again when it exits: the pause keeps a missing model from becoming a busy loop.
pause=${GATEHOUSE_FAILURE_PAUSE:-30}

refuse() {
    echo "engine: $1" >&2
    # In the background, because a shell that waits for a foreground command hears no SIGTERM.
    trap 'exit 1' TERM INT
    sleep "$pause" &
    wait $!
    exit 1
}

# has_all_files DIRECTORY: the files without which vLLM fails minutes later, and with a traceback.
has_all_files() {
    [ -f "$1/config.json" ] || return 1
    [ -f "$1/tokenizer.json" ] || [ -f "$1/tokenizer_config.json" ] || return 1
    if [ -f "$1/model.safetensors.index.json" ]; then
        for shard in $(grep -o '"[^"/]*\.safetensors"' "$1/model.safetensors.index.json" | tr -d '"' | sort -u); do
            [ -s "$1/$shard" ] || return 1
        done
    else
        [ -n "$(find "$1" -maxdepth 1 -name '*.safetensors' -size +0)" ]
    fi
}

[ -r "$profile" ] || refuse "no profile at $profile: set GATEHOUSE_PROFILE in .env to the name of a file in vllm/profiles"
[ -s "$key_file" ] || refuse "no engine key at $key_file: run make setup"
model=$(sed -n "s/^model:[[:space:]]*//p" "$profile" | sed "s/[[:space:]]*#.*//; s/^[\"']//; s/[\"'][[:space:]]*$//")
[ -n "$model" ] || refuse "the profile names no model"
[ -d "$model" ] || refuse "no model in $model: run make model"
has_all_files "$model" || refuse "the model in $model is not complete: run make model"

# For this process alone: not an argument that `ps` shows, nor a variable that `docker inspect` shows.
VLLM_API_KEY=$(cat "$key_file")
export VLLM_API_KEY

set -- serve --config "$profile" --host 0.0.0.0 --port 8000 --disable-fastapi-docs --disable-uvicorn-access-log

# From 0.18 on a stopping engine can finish what it has begun; 0.16 knows no such flag.
version=$(python3 -c 'from importlib.metadata import version; print(version("vllm"))')
major=${version%%.*}
minor=${version#*.}
minor=${minor%%.*}
if [ "$major" -gt 0 ] || [ "$minor" -ge 18 ]; then
    set -- "$@" --shutdown-timeout "${GATEHOUSE_DRAIN_SECONDS:-60}"
fi
exec vllm "$@"
