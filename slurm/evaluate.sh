#!/bin/bash
# Evaluates the checkpoints of a job as they come, on a node of its own, until that job's training has ended.
#
#   sbatch slurm/evaluate.sh runs/mine                          the job-dir, which is only read
#   sbatch --ntasks=4 slurm/evaluate.sh runs/mine               on four ranks of one node
#   sbatch slurm/evaluate.sh runs/mine --every-checkpoint       and any other option of "hpc-train evaluate"
#
# It may be submitted before the job, or while it waits. At its time limit it is requeued, and evaluates nothing twice.
# Flags given to sbatch win over the lines below; HPC_TRAIN_HOME and HPC_TRAIN_MODULES are read as by train.sh. See
# docs/evaluation.md.

#SBATCH --job-name=hpc_train_evaluate
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
# With a GPU for each rank: take one # off the next line, or pass --gpus-per-node=1 to sbatch.
##SBATCH --gpus-per-node=1

set -euo pipefail

fail() {
    echo "evaluate.sh: $1" >&2
    exit 2
}

stop= # as in train.sh
trap 'stop=USR1' USR1
trap 'stop=TERM' TERM

[[ -n ${SLURM_JOB_ID:-} ]] || fail "this runs inside a Slurm job: submit it with 'sbatch slurm/evaluate.sh JOBDIR'"
if (($# == 0)) || [[ $1 == -* ]]; then
    fail "the job-dir is missing: sbatch slurm/evaluate.sh JOBDIR [options of hpc-train evaluate]"
fi
((SLURM_JOB_NUM_NODES == 1)) || fail "this takes one node; ask for more ranks on it by --ntasks"

# ---- the checkout, as in train.sh
home=${HPC_TRAIN_HOME:-}
if [[ -z $home && -f ${SLURM_SUBMIT_DIR:-.}/slurm/evaluate.sh ]]; then
    home=$SLURM_SUBMIT_DIR
elif [[ -z $home ]]; then
    command_line=$'Command=([^\n]*)/slurm/evaluate\\.sh'
    if [[ $(scontrol show job "$SLURM_JOB_ID") =~ $command_line ]]; then
        home=${BASH_REMATCH[1]}
    fi
fi
[[ -f $home/slurm/programs.sh ]] ||
    fail "no checkout of hpc_train at '$home': submit from the checkout, or set HPC_TRAIN_HOME to it"

[[ -z ${HPC_TRAIN_CONTAINER:-}${HPC_TRAIN_PACK:-} ]] || fail "HPC_TRAIN_CONTAINER and HPC_TRAIN_PACK are for train.sh: unset them"
# shellcheck source=slurm/programs.sh
source "$home/slurm/programs.sh"

# ---- run
export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
command=(hpc-train evaluate "$@" --follow)
ranks=${SLURM_NTASKS:-1}
if ((ranks > 1)); then
    # Of two mpiruns that share the folder for their sessions, one that starts just when the other ends can fail.
    # Ranks refuse the setting: they get another from mpirun.
    if [[ -z ${OMPI_MCA_orte_tmpdir_base:-}${OMPI_MCA_orte_local_tmpdir_base:-} ]]; then
        session=$(mktemp -d)
        trap 'rm -rf "$session"' EXIT
        export OMPI_MCA_orte_local_tmpdir_base=$session
        command=(env -u OMPI_MCA_orte_local_tmpdir_base "${command[@]}")
    fi
    # Slurm has given the job its cores; Open MPI would pin each rank with all its threads to one of them.
    export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}
    command=(mpirun -np "$ranks" "${command[@]}")
fi
me=evaluate.sh
# shellcheck source=slurm/alone.sh
source "$home/slurm/alone.sh"
