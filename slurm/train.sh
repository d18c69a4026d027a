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
#   HPC_TRAIN_HOME      the checkout of hpc_train, if this file is a copy outside of it
#   HPC_TRAIN_MODULES   modules to load first, for example "openmpi/4.1 cuda/12.4"

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

# Slurm's warning before the time limit (USR1) and its TERM come to this shell, at any time. Both go on as USR1, which
# mpirun hands to the ranks: they save a checkpoint and leave with code 3. TERM would kill them.
stop=
mpirun_pid=
trap 'stop=1; [[ -z $mpirun_pid ]] || kill -USR1 "$mpirun_pid" 2>/dev/null || true' USR1 TERM

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

# ---- run
[[ -z $stop ]] || exit 3
mpirun "${mpi_args[@]}" hpc-train train "$@" &
mpirun_pid=$!

while kill -0 "$mpirun_pid" 2>/dev/null; do
    wait "$mpirun_pid" || true # a signal that is trapped ends the wait early: wait again
done
code=0
wait "$mpirun_pid" || code=$?

# Slurm starts a preempted job again, but not one that has ended by itself in its grace time: ask for that.
if ((code != 0)) && [[ $(scontrol show job "$job") == *PreemptTime=[0-9]* ]] && scontrol requeue "$job"; then
    echo "train.sh: preempted; the job is back in the queue"
    sleep 60 & # Slurm ends this script before that
    wait
elif ((code == 3)); then
    echo "train.sh: stopped after saving; submit again to continue, with these arguments:$(printf ' %q' "$@")"
fi
exit "$code"
