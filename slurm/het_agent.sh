#!/bin/bash
# Runs a command on a node of a heterogeneous job, for Open MPI: het_agent.sh NODE COMMAND. Takes the place of ssh.
set -euo pipefail
node=$1
shift
for ((group = 0; group < SLURM_HET_SIZE; ++group)); do
    nodes=SLURM_JOB_NODELIST_HET_GROUP_$group
    if scontrol show hostnames "${!nodes}" | grep -qxF "$node"; then
        exec srun --het-group="$group" --nodes=1 --ntasks=1 --nodelist="$node" --overlap --quiet /bin/sh -c "$*"
    fi
done
echo "het_agent.sh: $node belongs to no component of job $SLURM_JOB_ID" >&2
exit 1
