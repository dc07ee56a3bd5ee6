#!/usr/bin/env bash
# Measures two rounds on this machine's GPU, with all weights and with LoRA: tokens per second, memory, MFU.
# Takes less than 20 minutes and downloads nothing. Options are those of `python -m benchmarks.gpu --help`;
# `benchmarks/gpu.sh --toy --device cpu` tries all of it without a GPU in about a minute.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
if ! [ -x "$(command -v "$python")" ]; then
    echo "error: $python is not there: run make install, or set PYTHON" >&2
    exit 2
fi
export TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
# Allocations that grow in place: the allocator's reserve is then near what the plan counts.
export PYTORCH_CUDA_ALLOC_CONF="${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}"
exec "$python" -m benchmarks.gpu "$@"
