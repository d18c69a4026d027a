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

readonly ASK_SECS=20    # what scontrol may take
readonly RECORD_SECS=10 # what noting the job's end in its job-dir may take
readonly LAST_SECS=15   # how long before the time limit waiting for the ranks ends
readonly LOST_NODE=205  # Open MPI's mpirun: lost communication with its daemon on another node

fail() {
    echo "train.sh: $1" >&2
    exit 2
}

# USR1 (Slurm's warning before the time limit) and TERM come to this shell, at any time. Both go on as USR1, which mpirun
# hands to the ranks: they save a checkpoint and leave with code 3. TERM would make mpirun kill them.
stop=
mpirun_pid=
end_time=
tell_ranks() {
    [[ -z $mpirun_pid ]] || kill -USR1 "$mpirun_pid" 2>/dev/null || true
}
trap 'stop=USR1; end_time=; tell_ranks' USR1 # preemption brings the end forward: ask for it again
trap 'stop=TERM; end_time=; tell_ranks' TERM

[[ -n ${SLURM_JOB_ID:-} ]] || fail "this runs inside a Slurm job: submit it with 'sbatch slurm/train.sh'"
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID can mean all tasks of an array
fi

# ---- the checkout: Slurm runs a copy of this file from its own folder, so $0 does not tell where it is
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

# ---- programs
if [[ -n ${HPC_TRAIN_MODULES:-} ]]; then
    type module >/dev/null 2>&1 || fail "HPC_TRAIN_MODULES is set, but there is no 'module' command here"
    read -r -a modules <<<"$HPC_TRAIN_MODULES"
    set +u # the module command reads variables that are not set
    module load "${modules[@]}"
    set -u
fi
if [[ -d $home/.venv/bin ]]; then
    PATH=$home/.venv/bin:$PATH
fi
command -v hpc-train >/dev/null || fail "no hpc-train in $home/.venv or on PATH: run 'make setup' first"
command -v mpirun >/dev/null || fail "no mpirun on PATH: run 'make setup' first, or set HPC_TRAIN_MODULES"

# ---- the job: the demo, or the job file and arguments given
if (($# == 0)); then
    python "$home/examples/fashion_mnist/prepare.py"
    demo_dir=$SLURM_SUBMIT_DIR/runs/fashion_mnist-$SLURM_JOB_ID
    set -- "$home/examples/fashion_mnist/job.yaml" --job-dir "$demo_dir"
fi

# ---- what the ranks inherit
export PATH
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
export HPC_TRAIN_WARNING_SECS=${HPC_TRAIN_WARNING_SECS:-120}
# mpirun starts its helpers with srun, one a node. They need all of the job's environment, also under
# "sbatch --export=NONE", and all of its cores: with SRUN_CPUS_PER_TASK they would get those of one rank.
export SLURM_EXPORT_ENV=ALL
unset SRUN_CPUS_PER_TASK

mpi_args=(-np "$SLURM_NTASKS")
mpi_version=$(mpirun --version 2>&1) || fail "mpirun does not run: $mpi_version"
case $mpi_version in
    *"Open MPI"*)
        for name in PATH LD_LIBRARY_PATH OMP_NUM_THREADS "${!HPC_TRAIN_@}"; do
            if [[ -n ${!name:-} ]]; then
                mpi_args+=(-x "$name")
            fi
        done
        # Slurm has given the job its cores; Open MPI would pin each rank with all its threads to one of them.
        export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}
        if (($(id -u) == 0)); then # as in containers
            export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        fi
        ;;
    *) # MPICH, Intel MPI and others with Hydra
        mpi_args+=(-genvall)
        ;;
esac

# ---- what Slurm says of the job: "ask_slurm; slurm_field JobState". Times are seconds since 1970.
job_record=
ask_slurm() {
    job_record=$(SLURM_TIME_FORMAT=%s timeout "$ASK_SECS" scontrol show job "$job" 2>/dev/null) || job_record=
}
slurm_field() {
    if [[ $job_record =~ (^|[[:space:]])$1=([^[:space:]]*) ]]; then
        echo "${BASH_REMATCH[2]}"
    fi
}
is_preempted() {
    [[ $(slurm_field PreemptTime) == [0-9]* ]]
}

# True where Slurm is about to kill the job at its time limit, for good: what is to be saved has to be saved by now. A
# job that is preempted goes back to the queue also where Slurm kills it, so that one may save to the last.
time_is_up() {
    local now
    printf -v now '%(%s)T' -1
    if [[ -z $end_time ]] || ((now >= end_time - LAST_SECS)); then # also where somebody has moved the limit
        ask_slurm
        end_time=$(slurm_field EndTime)
        [[ $end_time =~ ^[0-9]+$ ]] || end_time=${SLURM_JOB_END_TIME:-$((now + 86400))}
    fi
    ((now >= end_time - LAST_SECS)) && [[ $stop == USR1 && $(slurm_field Requeue) != 0 ]] && ! is_preempted
}

# ---- run
code=3
if [[ -z $stop ]]; then
    mpirun "${mpi_args[@]}" hpc-train train "$@" &
    mpirun_pid=$!
fi
still_running=
polls=0
while [[ -n $mpirun_pid ]] && kill -0 "$mpirun_pid" 2>/dev/null; do
    if [[ -z $stop ]]; then
        wait "$mpirun_pid" || true # a signal that is trapped ends the wait early
    elif time_is_up; then
        still_running=1
        break
    else
        ((++polls % 5)) || tell_ranks # again: an mpirun that is still starting them tells none
        sleep 1 &
        wait $! || true
    fi
done
if [[ -n $mpirun_pid && -z $still_running ]]; then
    code=0
    wait "$mpirun_pid" || code=$?
fi
mpirun_pid=
if ((code == 0)); then
    exit 0
fi

# ---- what becomes of the job
record_end() {
    timeout "$RECORD_SECS" hpc-train record-end --code "$code" "$@"
}

# Sets `why` to the reason for which the job goes back into the queue, or to nothing. Slurm ends a job that was cancelled
# or has passed its limit in other states than RUNNING. A preempted job that ends by itself in its grace time stays so.
decide() {
    why=
    ask_slurm
    if [[ $(slurm_field Requeue) == 0 || $code == [279] ]]; then
        return
    elif [[ $(slurm_field Reason) == TimeLimit ]]; then # it came without a warning
        why=warning
    elif [[ -n $job_record && $(slurm_field JobState) != RUNNING ]]; then
        return
    elif is_preempted; then # with any code: Slurm may have ended the ranks of other nodes
        why=preemption
    elif [[ $stop == USR1 && $code != 1 ]]; then
        why=warning
    elif ((code == LOST_NODE)); then # Slurm would start the job again, had mpirun not ended before Slurm noticed
        why=lost-node
    fi
}

leave_if_back_in_queue() {
    if (($(slurm_field Restarts) + 0 > ${SLURM_RESTART_COUNT:-0})); then
        record_end --requeue preemption "$@" || true
        exit "$code"
    fi
}

decide
leave_if_back_in_queue "$@"
if [[ -n $why ]]; then
    if [[ -n $still_running ]]; then
        echo "train.sh: no time is left to wait for the ranks' checkpoint; the job will go on from the one before." \
            "Have Slurm warn earlier: sbatch --signal=B:USR1@600, with HPC_TRAIN_WARNING_SECS=600"
    fi
    refused=0
    record_end --requeue "$why" "$@" || refused=$?
    if ((refused == 8)); then # it has said why; what else it may have failed with is no reason not to go on
        exit 8
    fi
    if [[ -n $job_record ]]; then # where scontrol hangs, it has cost its time once
        decide                    # it may have been cancelled meanwhile
    fi
fi
if [[ -z $why ]]; then
    record_end "$@" || true
    if ((code >= 3 && code <= 5)); then
        echo "train.sh: stopped after saving; submit again to continue, with these arguments:$(printf ' %q' "$@")"
    fi
    exit "$code"
fi
if problem=$(timeout "$ASK_SECS" scontrol requeue "$job" 2>&1); then
    echo "train.sh: the job is back in the queue ($why)"
    sleep 60 >/dev/null 2>&1 & # Slurm ends this script before that
    wait $! || true
    exit "$code"
fi
if [[ -n $job_record ]]; then
    ask_slurm
    leave_if_back_in_queue "$@"
fi
code=8
record_end "$@" || true
echo "train.sh: stopped, and not back in the queue (${problem:-scontrol does not answer}). Type where scontrol works:" \
    "scontrol requeue $job"
echo "train.sh: or, once Slurm has forgotten the job:" \
    "sbatch${SLURM_ARRAY_TASK_ID:+ --array=$SLURM_ARRAY_TASK_ID}$(printf ' %q' "$home/slurm/train.sh" "$@")"
exit 8
