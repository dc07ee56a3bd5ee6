#!/usr/bin/env bash
# On a GPU: the rehearsal of a recipe within 20 minutes, then GRPO steps, rollouts and utilisation beside plain TRL.
# On the first GPU; `make install develop vllm` comes first. Not run on a GPU yet.
#
#   benchmarks/gpu.sh [RECIPE [--set KEY=VALUE ...]]       MODEL=FOLDER: what is timed; Qwen/Qwen3-0.6B of the hub if none
#
# Results: build/benchmarks/gpu.md, JSON lines beside it. Exit status: 0; 2 with one sentence where there is no GPU, or
# a step of the rehearsal breaks; 1 where a benchmark fails.
set -euo pipefail
cd "$(dirname "$0")/.."
recipe=${1:-recipes/lm-gpu.yaml}
[ $# -eq 0 ] || shift

refuse() { echo "error: $1" >&2; exit 2; }
nvidia-smi -L >/dev/null 2>&1 || refuse "there is no GPU here (nvidia-smi lists none): run this on a machine that has one"
[ -e .venv/.developing ] || refuse "there is no .venv with the developers' tools: run make develop"
[ -e .venvs/vllm/.installed-gpu ] || refuse "vLLM's CUDA build is not in .venvs/vllm: run make vllm VLLM_FOR=gpu"
.venv/bin/python -P -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
  refuse "torch in .venv finds no GPU: install a CUDA build of it there"
model=${MODEL:-$(.venv/bin/hf download Qwen/Qwen3-0.6B --quiet)} ||
  refuse "Qwen/Qwen3-0.6B cannot be downloaded: name a model's folder with MODEL=FOLDER"
mkdir -p build/benchmarks

began=$SECONDS
timeout --foreground --signal=INT 1200 .venv/bin/coevolve check "$recipe" --rehearse "$@" || {
  status=$?
  [ $status -ne 124 ] || refuse "the rehearsal of $recipe took more than 20 minutes: its last step is above"
  exit $status
}
echo "rehearsed in $((SECONDS - began)) s"

rm -f build/benchmarks/gpu.md build/benchmarks/gpu.jsonl
visible=${CUDA_VISIBLE_DEVICES:-0}
CUDA_VISIBLE_DEVICES=${visible%%,*} .venv/bin/python -m benchmarks --model "$model" --output build/benchmarks/gpu.md
