#!/bin/bash
# Trains on a Slurm cluster.
#
#   sbatch slurm/train.sh                                 the Fashion-MNIST demo, two ranks on one node
#   sbatch --nodes=2 slurm/train.sh my/job.yaml           your job file, two ranks on each of two nodes
#   sbatch slurm/train.sh my/job.yaml --job-dir my/run    and any other argument of "hpc-train train"
#
# Flags given to sbatch win over the lines below. Copy this file and edit it as you like; see docs/slurm.md.
#
# Read from the environment:
#   HPC_TRAIN_HOME           the checkout of hpc_train, if this file is a copy outside of it
#   HPC_TRAIN_MODULES        modules to load first, for example "openmpi/4.1 cuda/12.4"
#   HPC_TRAIN_LAUNCHER       what starts the ranks: mpirun, the default, or srun
#   HPC_TRAIN_MIN_NODES      with so many nodes left the job goes on after others were lost: sbatch --no-kill
#   HPC_TRAIN_SPARE_NODES    so many of the job's nodes stay idle until one is lost
#   HPC_TRAIN_BIND           what ranks are bound to: none, core, numa or auto (the default); see docs/performance.md
#   HPC_TRAIN_PACK           a file of hpc-train pack: each node unpacks it, and the ranks start from there
#   HPC_TRAIN_CONTAINER      an image that the ranks run in, then folders to bind: image.sif,/scratch; see docs/containers.md
#   HPC_TRAIN_WARNING_SECS   how long before the time limit --signal warns, if that is not the 120 s of the line below

#SBATCH --job-name=hpc_train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
# With GPUs, one rank for each: take one # off the next line, or pass --gpus-per-node=2 to sbatch.
##SBATCH --gpus-per-node=2

set -euo pipefail

fail() {
    echo "train.sh: $1" >&2
    exit 2
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then # else array.sh, which sources this, may have received one
    stop=                                 # the signal that has come: see ranks.sh
fi
trap 'stop=USR1' USR1
trap 'stop=TERM' TERM

[[ -n ${SLURM_JOB_ID:-} ]] || fail "this runs inside a Slurm job: submit it with 'sbatch slurm/train.sh'"
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID can mean all tasks of an array
fi

# ---- the checkout: Slurm runs a copy of this file from its own folder, so $0 is not its path
home=${HPC_TRAIN_HOME:-}
if [[ -z $home && -f ${SLURM_SUBMIT_DIR:-.}/slurm/train.sh ]]; then
    home=$SLURM_SUBMIT_DIR
elif [[ -z $home ]]; then
    command_line=$'Command=([^\n]*)/slurm/train\\.sh'
    if [[ $(scontrol show job "$job") =~ $command_line ]]; then
        home=${BASH_REMATCH[1]}
    fi
fi
[[ -f $home/slurm/train.sh ]] ||
    fail "no checkout of hpc_train at '$home': submit from the checkout, or set HPC_TRAIN_HOME to it"

# shellcheck source=slurm/programs.sh
source "$home/slurm/programs.sh"

# ---- nodes that may be lost
min_nodes=${HPC_TRAIN_MIN_NODES:-}
spare_nodes=${HPC_TRAIN_SPARE_NODES:-0}
node_count=${SLURM_JOB_NUM_NODES:-1}
if [[ ! $spare_nodes =~ ^(0|[1-9][0-9]{0,5})$ ]] || ((spare_nodes > 0 && spare_nodes + 2 > node_count)); then
    fail "HPC_TRAIN_SPARE_NODES is '$spare_nodes'; allowed: a number that leaves two of the job's $node_count nodes, or 0"
fi
if [[ -n $min_nodes ]]; then
    if [[ ! $min_nodes =~ ^[1-9][0-9]{0,5}$ ]] || ((min_nodes > node_count - spare_nodes)); then
        fail "HPC_TRAIN_MIN_NODES is '$min_nodes'; allowed: 1 to $((node_count - spare_nodes)), the nodes of the ranks"
    fi
    [[ -z ${SLURM_HET_SIZE:-} ]] || fail "HPC_TRAIN_MIN_NODES is not for heterogeneous jobs: leave it out"
elif ((spare_nodes > 0)); then
    min_nodes=$((node_count - spare_nodes))
fi

# ---- the job: the demo, or the job file and arguments given
if (($# == 0)); then
    python "$home/examples/fashion_mnist/prepare.py"
    demo_dir=$SLURM_SUBMIT_DIR/runs/fashion_mnist-$SLURM_JOB_ID
    set -- "$home/examples/fashion_mnist/job.yaml" --job-dir "$demo_dir"
fi
# A job that goes on without a lost worker has a guard for each rank (docs/faults.md), by this word for mpirun. Whoever
# only writes of it in a comment has guards that do nothing.
for word in "$@"; do
    key="on_lost_worker['\"]?[[:space:]]*[:=][[:space:]]*['\"]?continue"
    if [[ $word =~ $key ]] || { [[ -f $word ]] && grep -qsE "$key" "$word"; }; then
        export OMPI_MCA_orte_allowed_exit_without_sync=${OMPI_MCA_orte_allowed_exit_without_sync:-1}
    fi
done
me=train.sh
program=
alone=
log_dir=
launcher=${HPC_TRAIN_LAUNCHER:-mpirun}
threads=
command=(hpc-train train "$@")
record=("$@")
# For hpc-train logs and resume, which find both in the job-dir.
HPC_TRAIN_OUTPUT=$(readlink "/proc/$$/fd/1") || HPC_TRAIN_OUTPUT=
[[ -f $HPC_TRAIN_OUTPUT ]] || HPC_TRAIN_OUTPUT=
again=(sbatch ${SLURM_ARRAY_TASK_ID:+"--array=$SLURM_ARRAY_TASK_ID"} "$home/slurm/train.sh" "$@")
printf -v HPC_TRAIN_COMMAND '%q ' "${again[@]}"
export HPC_TRAIN_OUTPUT HPC_TRAIN_COMMAND
if [[ -n ${HPC_TRAIN_CONTAINER:-} ]]; then
    [[ -z ${HPC_TRAIN_PACK:-} ]] || fail "HPC_TRAIN_PACK is not for ranks in a container (HPC_TRAIN_CONTAINER): leave one out"
    # shellcheck source=slurm/container.sh
    source "$home/slurm/container.sh"
fi
if [[ -n ${SLURM_HET_SIZE:-} ]]; then
    # shellcheck source=slurm/het.sh
    source "$home/slurm/het.sh"
fi
pack_list=
pack=${HPC_TRAIN_PACK:-}
if [[ -n $pack ]]; then
    # shellcheck source=slurm/pack.sh
    source "$home/slurm/pack.sh"
fi
# shellcheck source=slurm/ranks.sh
source "$home/slurm/ranks.sh"
