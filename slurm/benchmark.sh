#!/bin/bash
# Measures nodes of the cluster: runs a benchmark of this package, which has them to itself.
#
#   sbatch slurm/benchmark.sh                              reading: benchmarks/input_pipeline.py
#   sbatch slurm/benchmark.sh checkpoint --dir /scratch    any other of benchmarks/, with its options
#   sbatch slurm/benchmark.sh scaling --models mlp         training with 1, 2, 4 ... ranks, up to one for each core
#   sbatch --nodes=2 slurm/benchmark.sh collectives        the links between two nodes, too
#   sbatch --nodes=2 --ntasks-per-node=4 --gpus-per-node=4 slurm/benchmark.sh scaling --gpu    one rank for each GPU
#   sbatch --ntasks-per-node=4 --gpus-per-node=4 slurm/benchmark.sh gpu       does training hold on the GPUs of this site?
#
# Without a number of tasks, there is a slot for a rank on each CPU that Slurm counts.
# Results go to runs/benchmark_<name>-<job number>/ in the folder that this is submitted from: records.jsonl, one JSON
# object a line, and the report, report.md with its drawings. HPC_TRAIN_HOME and HPC_TRAIN_MODULES are read as by train.sh.

#SBATCH --job-name=hpc_train_benchmark
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue

set -euo pipefail

fail() {
    echo "benchmark.sh: $1" >&2
    exit 2
}

[[ -n ${SLURM_JOB_ID:-} ]] || fail "this runs inside a Slurm job: submit it with 'sbatch slurm/benchmark.sh'"

# ---- the checkout, as in train.sh
home=${HPC_TRAIN_HOME:-}
if [[ -z $home && -f ${SLURM_SUBMIT_DIR:-.}/slurm/benchmark.sh ]]; then
    home=$SLURM_SUBMIT_DIR
elif [[ -z $home ]]; then
    command_line=$'Command=([^\n]*)/slurm/benchmark\\.sh'
    if [[ $(scontrol show job "$SLURM_JOB_ID") =~ $command_line ]]; then
        home=${BASH_REMATCH[1]}
    fi
fi
[[ -d $home/benchmarks ]] ||
    fail "no checkout of hpc_train at '$home': submit from the checkout, or set HPC_TRAIN_HOME to it"

name=${1:-input_pipeline}
if [[ $name == */* || ! -f $home/benchmarks/$name.py ]]; then
    there=("$home"/benchmarks/*.py)
    there=("${there[@]##*/}")
    fail "there is no benchmark '$name'; there are: ${there[*]%.py}"
fi
if (($# > 0)); then
    shift
fi

[[ -z ${HPC_TRAIN_CONTAINER:-}${HPC_TRAIN_PACK:-} ]] || fail "HPC_TRAIN_CONTAINER and HPC_TRAIN_PACK are for train.sh: unset them"
# shellcheck source=slurm/programs.sh
source "$home/slurm/programs.sh"

if [[ $name == quick ]]; then # it leaves nothing but what it prints
    exec python "$home/benchmarks/quick.py" "$@"
fi
results=$SLURM_SUBMIT_DIR/runs/benchmark_$name-$SLURM_JOB_ID
echo "benchmark.sh: $name on $(hostname), results in $results"
if [[ ${SLURM_NTASKS:-} == "${SLURM_JOB_NUM_NODES:-1}" ]] && ((${SLURM_CPUS_ON_NODE:-1} > 1)); then
    echo "benchmark.sh: one task a node, so one rank a node; for more: sbatch --ntasks-per-node=$SLURM_CPUS_ON_NODE"
fi
exec python "$home/benchmarks/$name.py" --out "$results" "$@"
