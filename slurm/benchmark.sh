#!/bin/bash
# Measures a node of the cluster: runs a benchmark of this package, which has the node to itself.
#
#   sbatch slurm/benchmark.sh                              reading: benchmarks/input_pipeline.py
#   sbatch slurm/benchmark.sh checkpoint --dir /scratch    any other of benchmarks/, with its options
#
# Results go to runs/benchmark_<name>-<job number>/ in the folder that this is submitted from: <name>.json, one JSON
# object a line, and the page <name>.html. HPC_TRAIN_HOME and HPC_TRAIN_MODULES are read as by train.sh.

#SBATCH --job-name=hpc_train_benchmark
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
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

# shellcheck source=slurm/programs.sh
source "$home/slurm/programs.sh"

results=$SLURM_SUBMIT_DIR/runs/benchmark_$name-$SLURM_JOB_ID
mkdir -p "$results"
echo "benchmark.sh: $name on $(hostname), results in $results"
exec python "$home/benchmarks/$name.py" --json "$results/$name.json" --report "$results/$name.html" "$@"
