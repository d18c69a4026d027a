#!/bin/bash
# Runs a study of hyper-parameters on the nodes of one Slurm job: as many trials at once as they have room for.
#
#   sbatch --nodes=2 slurm/tune.sh my/job.yaml           a study of a job file with `tune`, in runs/<name>_study
#   sbatch --nodes=2 slurm/tune.sh runs/mine_study       and one that was begun, which several jobs may go on with
#   sbatch --array=0-7 slurm/tune.sh runs/mine_study     each task runs trials of it, until there are no more
#
# A trial runs on one node. --cpus-per-task is what each of its ranks gets; --ntasks-per-node, how many ranks of all
# trials a node has room for. Further arguments go to "hpc-train tune". A job that is warned, or preempted, goes back
# into the queue, and its trials go on where they were. See docs/tuning.md.
#
# Read from the environment: HPC_TRAIN_HOME and HPC_TRAIN_MODULES, as in train.sh.

#SBATCH --job-name=hpc_train_tune
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --signal=B:USR1@120

set -euo pipefail

fail() {
    echo "tune.sh: $1" >&2
    exit 2
}

stop= # as in train.sh
trap 'stop=USR1' USR1
trap 'stop=TERM' TERM

[[ -n ${SLURM_JOB_ID:-} ]] || fail "this runs inside a Slurm job: submit it with 'sbatch slurm/tune.sh JOB.yaml'"
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID can mean all tasks of an array
fi
if (($# == 0)) || [[ $1 == -* ]]; then
    fail "the job file or the study is missing: sbatch slurm/tune.sh JOB.yaml [options of hpc-train tune]"
fi

# ---- the checkout, as in train.sh
home=${HPC_TRAIN_HOME:-}
if [[ -z $home && -f ${SLURM_SUBMIT_DIR:-.}/slurm/tune.sh ]]; then
    home=$SLURM_SUBMIT_DIR
elif [[ -z $home ]]; then
    command_line=$'Command=([^\n]*)/slurm/tune\\.sh'
    if [[ $(scontrol show job "$job") =~ $command_line ]]; then
        home=${BASH_REMATCH[1]}
    fi
fi
[[ -f $home/slurm/programs.sh ]] ||
    fail "no checkout of hpc_train at '$home': submit from the checkout, or set HPC_TRAIN_HOME to it"

[[ -z ${HPC_TRAIN_CONTAINER:-}${HPC_TRAIN_PACK:-} ]] || fail "HPC_TRAIN_CONTAINER and HPC_TRAIN_PACK are for train.sh: unset them"
# shellcheck source=slurm/programs.sh
source "$home/slurm/programs.sh"

me=tune.sh
command=(hpc-train tune "$@")
# shellcheck source=slurm/alone.sh
source "$home/slurm/alone.sh"
