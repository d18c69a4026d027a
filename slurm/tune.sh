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

# USR1 is Slurm's warning before the time limit, TERM its preemption: the trials save, and go on after the requeue.
stop=
pid=
signal_driver() {
    [[ -z $pid ]] || kill -USR1 "$pid" 2>/dev/null || true
}
trap 'stop=USR1; signal_driver' USR1
trap 'stop=TERM; signal_driver' TERM

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

# shellcheck source=slurm/programs.sh
source "$home/slurm/programs.sh"

# ---- run
readonly EXIT_STOPPED=3 EXIT_LOST_NODE=205
readonly UNREQUEUED_CODES="0 1 2 7 8 9 10 11 12" # as in ranks.sh
unset SRUN_CPUS_PER_TASK
if (($(id -u) == 0)); then # as in containers
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
code=$EXIT_STOPPED
if [[ -z $stop ]]; then
    hpc-train tune "$@" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid" || true # a signal that is trapped ends the wait early
    done
    code=0
    wait "$pid" || code=$?
    pid=
fi

# ---- back into the queue, where Slurm has asked to stop, or all other nodes are lost
if [[ $stop == USR1 && " $UNREQUEUED_CODES " != *" $code "* ]] || ((code == EXIT_LOST_NODE)); then
    if problem=$(timeout 20 scontrol requeue "$job" 2>&1); then
        echo "tune.sh: the job is back in the queue"
        sleep 60 >/dev/null 2>&1 & # Slurm ends this script before that
        wait $! || true
        exit "$code"
    fi
    echo "tune.sh: stopped, and not back in the queue ($problem): submit it again to go on"
fi
exit "$code"
