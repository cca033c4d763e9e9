#!/usr/bin/env bash
# serve.sh VERSION PORT [OPTION…]: serve the tiny model with a real vLLM on 127.0.0.1, in the foreground. Installs
# what is missing. The key is in VLLM_API_KEY. Context 2048 tokens, 4 sequences, 8224 tokens of KV cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=${1:?usage: serve.sh VERSION PORT}
port=${2:?usage: serve.sh VERSION PORT}
shift 2
found=$("$here/install.sh" "$version")
venv=$(sed -n 's/^VENV=//p' <<< "$found")
model=$(sed -n 's/^MODEL=//p' <<< "$found")
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 TOKENIZERS_PARALLELISM=false
export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 TORCHDYNAMO_DISABLE=1
export VLLM_CACHE_ROOT=$venv/cache
# vLLM starts Python modules from its working directory: an empty one, so that no file there takes a module's place.
mkdir -p "$venv/run"
cd "$venv/run"
exec "$venv/bin/vllm" serve "$model" --max-model-len 2048 --max-num-seqs 4 --host 127.0.0.1 --port "$port" \
  --enforce-eager --block-size 32 --num-gpu-blocks-override 257 "$@"
