#!/bin/bash
# Two nodes of one Slurm job: the first trains, the second samples with one vLLM server per GPU.
#   sbatch recipes/launch/slurm-two-nodes.sh recipes/paper-bfcl.yaml runs/paper-bfcl
# Submitted again, it goes on with the run, on whatever nodes it gets: the servers' addresses are not settings of the run.
# The working directory is the checkout, on a disk that both nodes see: weights reach the servers through RUN.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@300
set -euo pipefail

RECIPE=$1
RUN=$2
GPUS=${GPUS:-8}            # of each node
PORT=${PORT:-8000}         # of the first server, the others follow
LOGS=runs/slurm-${SLURM_JOB_ID}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
trainer=${nodes[0]} sampler=${nodes[1]}
mkdir -p "$LOGS"
: > "$LOGS/servers.txt"

# Whoever reaches a server can replace its weights: --host is the node's own address in the cluster's private network.
srun --nodes=1 --ntasks=1 --nodelist="$sampler" .venv/bin/coevolve serve --recipe "$RECIPE" \
  --count "$GPUS" --device-ids "$(seq -s, 0 $((GPUS - 1)))" --port "$PORT" --host "$sampler" \
  --log-dir "$LOGS" > "$LOGS/servers.txt" 2> "$LOGS/serve.log" &
servers=$!
trap 'kill "$servers" 2>/dev/null; wait' EXIT

until [ "$(grep -c ^http "$LOGS/servers.txt")" = "$GPUS" ]; do
  kill -0 "$servers" 2>/dev/null || { cat "$LOGS/serve.log" >&2; exit 1; }
  sleep 1
done
COEVOLVE_SERVERS=$(cut -d' ' -f1 "$LOGS/servers.txt" | paste -sd,)
export COEVOLVE_SERVERS

if [ -e "$RUN/settings.yaml" ]; then
  options=(--resume)
else
  options=(--recipe "$RECIPE" --set sampling.engine=vllm_server --set "training.launch.processes=$GPUS")
fi
srun --nodes=1 --ntasks=1 --nodelist="$trainer" --export=ALL .venv/bin/coevolve evolve --run "$RUN" "${options[@]}" &
evolve=$!
trap 'kill "$evolve"; wait "$evolve"; exit 143' TERM  # Slurm's warning before the time is over: the run's state is kept
wait "$evolve"
