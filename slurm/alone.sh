# shellcheck shell=bash
# shellcheck disable=SC2154
# Runs a command once, passes Slurm's signals on to it, and requeues the job where it has to be. Unlike ranks.sh, it
# records nothing: the command sees to what it leaves.
#
# The last part of slurm/tune.sh and evaluate.sh, which source it, and of the script that "hpc-train tune --as-jobs" writes,
# which has it copied in. It does not return: it ends the script. The script before it sets:
#   command=(…)      what is run, which saves at SIGUSR1
#   me=NAME          the beginning of messages
#   stop=USR1|TERM   the signal that has come already; the script should trap both from its first line on

set -euo pipefail

# ---- exit codes, as hpc_train/outcome.py has them
readonly EXIT_STOPPED=3 EXIT_LOST_NODE=205
readonly UNREQUEUED_CODES="0 1 2 7 8 9 10 11 12" # as in ranks.sh

job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID can mean all tasks of an array
fi

# USR1 is Slurm's warning before the time limit, TERM its preemption. mpirun would kill its ranks at TERM.
stop=${stop:-}
pid=
signal_command() {
    [[ -z $pid ]] || kill -USR1 "$pid" 2>/dev/null || true
}
trap 'stop=USR1; signal_command' USR1
trap 'stop=TERM; signal_command' TERM

unset SRUN_CPUS_PER_TASK
if (($(id -u) == 0)); then # as in containers
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
code=$EXIT_STOPPED
if [[ -z $stop ]]; then
    "${command[@]}" &
    pid=$!
    while kill -0 "$pid" 2>/dev/null; do
        if [[ -z $stop ]]; then
            wait "$pid" || true # a signal that is trapped ends the wait early
        else
            sleep 5 &
            wait -n "$pid" $! || true
            signal_command # again: an mpirun that is still starting its ranks signals none
        fi
    done
    code=0
    wait "$pid" || code=$?
    pid=
fi

# ---- back into the queue, where Slurm has asked to stop, or nodes are lost
if [[ $stop == USR1 && " $UNREQUEUED_CODES " != *" $code "* ]] || ((code == EXIT_LOST_NODE)); then
    # Slurm ends what this script has started as soon as the job is requeued; it is to answer all the same.
    # shellcheck disable=SC2016
    requeue='trap "" TERM; exec scontrol requeue "$1"'
    if problem=$(trap "" TERM; timeout 20 bash -c "$requeue" - "$job" 2>&1); then
        echo "$me: the job is back in the queue"
        sleep 60 >/dev/null 2>&1 & # Slurm ends this script before that
        wait $! || true
        exit "$code"
    fi
    echo "$me: stopped, and not back in the queue ($problem): submit it again to go on"
fi
exit "$code"
