# shellcheck shell=bash
# shellcheck disable=SC2154
# Has Open MPI start ranks on all components of a heterogeneous job: it knows the nodes of the first one alone, and its
# launcher for Slurm cannot reach the others. A part of train.sh and of the scripts of "hpc-train submit", with:
#   command=(…) what each rank runs
#   fail        a function that prints its argument and ends the script
# Ranks are numbered component by component, so rank 0 is on the first node of the first one. Sets SLURM_NTASKS to the
# number of all of them, and has each rank take the threads of its component. A file with the nodes is in TMPDIR until ranks.sh ends.

[[ $(mpirun --version 2>&1) == *"Open MPI) 4."* ]] || fail "heterogeneous jobs need Open MPI 4"

# Runs a command on a node, in place of ssh; words are the node and the command.
# shellcheck disable=SC2016
het_agent='node=$1
shift
for ((group = 0; group < SLURM_HET_SIZE; ++group)); do
    nodes=SLURM_JOB_NODELIST_HET_GROUP_$group
    if scontrol show hostnames "${!nodes}" | grep -qxF "$node"; then
        exec srun --het-group="$group" --nodes=1 --ntasks=1 --nodelist="$node" --overlap --quiet /bin/sh -c "$*"
    fi
done
echo "het.sh: $node belongs to no component of job $SLURM_JOB_ID" >&2
exit 1'

# Runs a rank with the threads of its component; words are the threads and the command. The threads are RANKS:THREADS of
# each component, such as "1:8 16:4": rank 0 has eight, each of the next sixteen four.
# shellcheck disable=SC2016
het_rank='rank=$OMPI_COMM_WORLD_RANK
for component in $1; do
    if ((rank < ${component%:*})); then
        export OMP_NUM_THREADS=${component#*:}
        break
    fi
    rank=$((rank - ${component%:*}))
done
exec "${@:2}"'

hostfile=$(mktemp)
SLURM_NTASKS=0
component_threads=
for ((group = 0; group < SLURM_HET_SIZE; ++group)); do
    nodes=SLURM_JOB_NODELIST_HET_GROUP_$group
    tasks=SLURM_TASKS_PER_NODE_HET_GROUP_$group # such as 2(x3),1
    slots=()
    IFS=, read -r -a counts <<<"${!tasks}"
    for count in "${counts[@]}"; do
        [[ $count =~ ^([0-9]+)(\(x([0-9]+)\))?$ ]] || fail "$tasks is '${!tasks}', which is not understood"
        for ((times = ${BASH_REMATCH[3]:-1}; times > 0; --times)); do
            slots+=("${BASH_REMATCH[1]}")
        done
    done
    number=0 ranks_before=$SLURM_NTASKS cores=SLURM_CPUS_PER_TASK_HET_GROUP_$group
    for node in $(scontrol show hostnames "${!nodes}"); do
        echo "$node slots=${slots[number]}" >>"$hostfile"
        SLURM_NTASKS=$((SLURM_NTASKS + slots[number]))
        ((++number))
    done
    component_threads+="$((SLURM_NTASKS - ranks_before)):${!cores:-1} "
done
if [[ -z ${threads:-} ]]; then
    command=(bash -c "$het_rank" - "$component_threads" "${command[@]}")
fi
# Open MPI splits its agent at blanks, and looks for the first word on each node: a program that all have, and a file
# without a name of which no path leads through a folder of the user's.
agent=$(mktemp)
echo "$het_agent" >"$agent"
exec {agent_file}<"$agent"
rm -f "$agent"
export SLURM_NTASKS
export OMPI_MCA_orte_default_hostfile=$hostfile OMPI_MCA_ras=^slurm OMPI_MCA_plm=rsh
export OMPI_MCA_plm_rsh_agent="bash /proc/$$/fd/$agent_file" OMPI_MCA_plm_rsh_no_tree_spawn=1
export OMPI_MCA_orte_leave_session_attached=1 # a helper that went into the background would end its step
