# shellcheck shell=bash
# shellcheck disable=SC2154
# Starts the ranks of a job, passes Slurm's signals on to them, and decides whether the job is requeued when they end.
#
# The last part of slurm/train.sh, which sources it, and of the scripts that "hpc-train submit" writes, which have it
# copied in. It does not return: it ends the script. The script before it sets all of these variables, since sbatch
# passes on variables of the same names that the user may have exported:
#   command=(…)      what each rank runs
#   record=(…)       arguments of "hpc-train record-end": those of "hpc-train train", or --job-dir and others
#   again=(…)        the command that submits the job again, for messages
#   program=1        the command is a program of the user's own, which writes no status.json: it is written here
#   alone=1          the command is started once, without mpirun
#   launcher=NAME    what starts the ranks: mpirun, or srun, which asks for none of mpirun's helpers on the nodes
#   log_dir=DIR      keeps each rank's output in DIR/run-0, run-1 … as well: one folder a run (Open MPI 3 and 4)
#   min_nodes=K      the job goes on in its allocation with K nodes or more after others were lost; or nothing
#   spare_nodes=S    nodes that have no ranks until others are lost
#   threads=N        of each rank, if that is not --cpus-per-task
#   me=NAME          the beginning of messages
#   stop=USR1|TERM   the signal that has come already; the script should trap both from its first line on

set -euo pipefail

readonly ASK_SECS=20    # time limit of scontrol
readonly BEGIN_SECS=60  # of recording the job's start in its job-dir
readonly RECORD_SECS=10 # and its end; up to BEGIN_SECS where Slurm leaves the time: on a busy node Python starts slowly
readonly PROBE_SECS=60  # of a step that shows that a node lives; to a dead one srun fails sooner
readonly WATCH_SECS=5   # how often the batch node is looked after
readonly LAST_SECS=15   # how long before the time limit waiting for the ranks ends

# ---- exit codes, as hpc_train/outcome.py has them (tests/unit/test_outcome.py compares the two)
readonly EXIT_FAILED=1 EXIT_BAD_INPUT=2 EXIT_STOPPED=3 EXIT_STALLED=6 EXIT_NOT_REQUEUED=8 EXIT_LOST_NODE=205
readonly SAVED_CODES="3 4 5" # the job has saved and resumes when it is started again
readonly FINAL_CODES="0 2 7 8 9 10 11 12" # it is never started again
readonly UNREQUEUED_CODES="0 1 2 7 8 9 10 11 12" # nor by the queue after its warning
is_one_of() {
    [[ " $2 " == *" $1 "* ]]
}

me=${me:-hpc-train}
launcher=${launcher:-mpirun}
job=$SLURM_JOB_ID
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID # SLURM_JOB_ID can mean all tasks of an array
fi

# USR1 (Slurm's warning before the time limit) and TERM come to this shell, at any time. Both are passed on as USR1, which
# mpirun sends to the ranks: they save a checkpoint and leave with EXIT_STOPPED. TERM would make mpirun kill them.
stop=${stop:-}
ranks_pid=
end_time=
signal_ranks() {
    [[ -z $ranks_pid ]] || kill -USR1 "$ranks_pid" 2>/dev/null || true
}
trap 'stop=USR1; end_time=; signal_ranks' USR1 # preemption brings the end forward: query it again
trap 'stop=TERM; end_time=; signal_ranks' TERM

# ---- the job's state in Slurm: "ask_slurm; slurm_field JobState". Times are seconds since 1970.
job_record=
ask_slurm() {
    job_record=$(SLURM_TIME_FORMAT=%s timeout "$ASK_SECS" scontrol show job "$job" 2>/dev/null) || job_record=
}
slurm_field() {
    if [[ $job_record =~ (^|[[:space:]])$1=([^[:space:]]*) ]]; then
        echo "${BASH_REMATCH[2]}"
    fi
}

# ---- its state in the job-dir
# record_end may read what is printed from here on: the job's output also has that of runs before this one.
log_from=$(stat -L -c %s "/proc/$$/fd/1" 2>/dev/null) || log_from=0
record+=(--log-from "$log_from")
if [[ -n ${program:-} ]]; then
    record+=(--program)
fi
cancelled=
record_end() {
    local now secs=$RECORD_SECS
    printf -v now '%(%s)T' -1
    case $(slurm_field EndTime) in
        Unknown) secs=$BEGIN_SECS ;; # the job has no limit
        [0-9]*) secs=$(($(slurm_field EndTime) - now - LAST_SECS)) ;;
    esac
    secs=$((secs < RECORD_SECS ? RECORD_SECS : secs > BEGIN_SECS ? BEGIN_SECS : secs))
    timeout "$secs" hpc-train record-end --code "$code" ${cancelled:+--cancelled} "${record[@]}" "$@"
}
refuse() {
    echo "$me: $1" >&2
    code=$EXIT_BAD_INPUT
    record_end || true
    exit "$code"
}

# ---- what the ranks inherit
export PATH
export OMP_NUM_THREADS=${threads:-${SLURM_CPUS_PER_TASK:-1}}
export HPC_TRAIN_WARNING_SECS=${HPC_TRAIN_WARNING_SECS:-120}
# For the report: how long the ranks take to their first step. In some locales the time has a comma.
launched=${EPOCHREALTIME:-}
export HPC_TRAIN_LAUNCHED=${launched/,/.}
# mpirun starts its helpers with srun, one a node. They need all of the job's environment, also under
# "sbatch --export=NONE", and all of its cores: with SRUN_CPUS_PER_TASK they would get those of one rank.
export SLURM_EXPORT_ENV=ALL
unset SRUN_CPUS_PER_TASK

# Sets `pmi` to the option of srun for what the ranks find each other by; to nothing where the site has a default.
choose_pmi() {
    local kinds kind
    pmi=
    [[ -z ${SLURM_MPI_TYPE:-} ]] || return 0 # srun reads it
    if [[ $(timeout "$ASK_SECS" scontrol show config 2>/dev/null) =~ MpiDefault[[:space:]]*=[[:space:]]*([^[:space:]]+) ]]; then
        [[ ${BASH_REMATCH[1]} == none || ${BASH_REMATCH[1]} == "(null)" ]] || return 0
    fi
    kinds=$(timeout "$ASK_SECS" srun --mpi=list 2>&1) || refuse "srun --mpi=list fails: $kinds"
    kinds=" ${kinds//[^A-Za-z0-9_]/ } "
    for kind in pmix pmix_v5 pmix_v4 pmix_v3 pmix_v2 cray_shasta; do
        [[ $kinds == *" $kind "* ]] || continue
        pmi=--mpi=$kind
        return
    done
    [[ $mpi_version != *"Open MPI"* && $kinds == *" pmi2 "* ]] ||
        refuse "srun here has no pmix, by which it would start this MPI ('srun --mpi=list'): take launcher: mpirun"
    pmi=--mpi=pmi2
}

ranks=1
hosts=() # the nodes of the ranks, where those are not all of the job
restarts=0
if [[ -n ${alone:-} ]]; then
    min_nodes=
else
    ranks=$SLURM_NTASKS
    [[ $launcher == mpirun || $launcher == srun ]] || refuse "launcher is '$launcher'; allowed: mpirun, srun"
    mpi_version=
    [[ $launcher == srun ]] || command -v mpirun >/dev/null ||
        refuse "no mpirun on PATH: run 'make setup', or load an MPI module (HPC_TRAIN_MODULES, or modules of the tier)"
    if command -v mpirun >/dev/null; then # with srun it only tells which MPI this is
        mpi_version=$(mpirun --version 2>&1) || refuse "mpirun does not run: $mpi_version"
    fi
    if [[ $launcher == srun ]]; then
        record+=(--launcher srun)
        [[ -z ${min_nodes:-} ]] || refuse "min_nodes and spare_nodes need launcher: mpirun; leave them out, or take it"
        [[ -z ${SLURM_HET_SIZE:-} ]] || refuse "heterogeneous jobs need launcher: mpirun"
        choose_pmi
    fi
    [[ $mpi_version == *"Open MPI"* || -z ${min_nodes:-} ]] ||
        refuse "min_nodes and spare_nodes need Open MPI, and mpirun is of another MPI: leave them out, or load Open MPI"
    program_command=("${command[@]}")
fi
if [[ -n ${min_nodes:-} ]]; then
    mapfile -t all_nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
    per_node=$((ranks / ${#all_nodes[@]}))
    ((per_node * ${#all_nodes[@]} == ranks)) ||
        refuse "min_nodes wants as many ranks on each node: $ranks ranks on ${#all_nodes[@]} nodes; take --ntasks-per-node"
    used_nodes=("${all_nodes[@]:0:${#all_nodes[@]}-${spare_nodes:-0}}")
    wanted_nodes=${#used_nodes[@]}
    export SLURM_OVERLAP=1 # mpirun's helpers do not wait for a step that is left on a dead node
fi
unset HPC_TRAIN_RESTART_REASON
earlier_restarts=${HPC_TRAIN_RESTARTS:-0}
[[ $earlier_restarts =~ ^[0-9]{1,6}$ ]] || earlier_restarts=0

# Sets `command` to what starts the ranks, on `hosts` where there are any.
set_command() {
    local variable run host slots=
    [[ -z ${alone:-} ]] || return 0
    if ((${#hosts[@]})); then
        ranks=$((${#hosts[@]} * per_node))
        for host in "${hosts[@]}"; do
            slots+=${slots:+,}$host:$per_node
        done
    fi
    local mpi_args=(-np "$ranks" ${slots:+--host "$slots"})
    command=("${program_command[@]}")
    if [[ $launcher == srun ]]; then
        session=$(mktemp -d) || refuse "this script needs a folder in ${TMPDIR:-/tmp}"
        command=(srun ${pmi:+"$pmi"} --ntasks="$ranks" ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} --cpu-bind=none
            --kill-on-bad-exit=1 --export=ALL "${command[@]}")
        return
    fi
    case $mpi_version in
        *"Open MPI"*)
            for variable in PATH LD_LIBRARY_PATH OMP_NUM_THREADS "${!HPC_TRAIN_@}"; do
                if [[ -n ${!variable:-} ]]; then
                    mpi_args+=(-x "$variable")
                fi
            done
            # Of two mpiruns that share the folder for their sessions, one that starts just when the other ends can fail.
            # Ranks refuse the setting: they get another from mpirun.
            if [[ -z ${OMPI_MCA_orte_tmpdir_base:-}${OMPI_MCA_orte_local_tmpdir_base:-} || -n $session ]]; then
                rm -rf "${session:-/nonexistent}"
                session=$(mktemp -d) || refuse "mpirun needs a folder in ${TMPDIR:-/tmp}"
                export OMPI_MCA_orte_local_tmpdir_base=$session
                command=(env -u OMPI_MCA_orte_local_tmpdir_base "${command[@]}")
            fi
            # Slurm has given the job its cores; Open MPI would pin each rank with all its threads to one of them.
            export OMPI_MCA_hwloc_base_binding_policy=${OMPI_MCA_hwloc_base_binding_policy:-none}
            if (($(id -u) == 0)); then # as in containers
                export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
            fi
            if [[ -n ${log_dir:-} && $log_dir != *:* && $mpi_version == *"Open MPI) "[34].* ]]; then
                run=${SLURM_RESTART_COUNT:-0}
                while [[ -e $log_dir/run-$run ]]; do # the job-dir was that of an earlier job, too
                    ((++run))
                done
                mpi_args+=(--output-filename "$log_dir/run-$run") # where there is a ':', it would end the path
                record+=(--rank-logs "$log_dir/run-$run")
            fi
            ;;
        *) # MPICH, Intel MPI and others with Hydra
            mpi_args+=(-genvall)
            ;;
    esac
    command=(mpirun "${mpi_args[@]}" "${command[@]}")
}

session=
watcher=
# shellcheck disable=SC2329
leave() {
    [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
    [[ -z $session ]] || rm -rf "$session"
    [[ -z ${hostfile:-} ]] || rm -f "$hostfile"
}
trap leave EXIT

is_preempted() {
    [[ $(slurm_field PreemptTime) == [0-9]* ]]
}
is_back_in_queue() {
    (($(slurm_field Restarts) + 0 > ${SLURM_RESTART_COUNT:-0}))
}

# Sets `cancelled` to 1 or to nothing. Until this script has ended, Slurm reports COMPLETING for a job that was
# cancelled, and gives no reason; of those that it ends itself, it gives one.
see_whether_cancelled() {
    cancelled=
    case $(slurm_field JobState),$(slurm_field Reason) in
        CANCELLED*) cancelled=1 ;;
        COMPLETING,None) is_preempted || is_back_in_queue || cancelled=1 ;;
    esac
}

# True where Slurm is about to kill the job at its time limit, for good: saving has to be finished by now. A
# job that is preempted goes back to the queue also where Slurm kills it, so that one may save to the last.
time_is_up() {
    local now
    printf -v now '%(%s)T' -1
    if [[ -z $end_time ]] || ((now >= end_time - LAST_SECS)); then # also where the limit was changed
        ask_slurm
        end_time=$(slurm_field EndTime)
        [[ $end_time =~ ^[0-9]+$ ]] || end_time=${SLURM_JOB_END_TIME:-$((now + 86400))}
    fi
    ((now >= end_time - LAST_SECS)) && [[ $stop == USR1 && $(slurm_field Requeue) != 0 ]] && ! is_preempted
}

# ---- nodes that are lost

# Sets `said` to what a command prints. It is ended, and 1 returned, within a second of a signal that comes meanwhile.
hear() {
    local line code answer asked
    said=
    exec {answer}< <("$@")
    asked=$!
    while [[ -z $stop ]]; do
        code=0
        IFS= read -r -t 1 -u "$answer" line || code=$?
        said+=$line
        ((code == 0)) && said+=$'\n'
        ((code == 0 || code > 128)) || break # else that second is over
    done
    exec {answer}<&-
    [[ -n $stop ]] || return 0
    kill "$asked" 2>/dev/null || true
    return 1
}

# Prints the nodes on which a step can run.
# shellcheck disable=SC2329
probe() {
    local node asked=()
    trap 'kill "${asked[@]}" 2>/dev/null; exit' TERM # not $(jobs -p), which has those of the script, too
    for node in "${all_nodes[@]}"; do
        timeout -k 2 "$PROBE_SECS" srun --overlap --nodes=1 --ntasks=1 --ntasks-per-node=1 --nodelist="$node" \
            --input=none echo "$node" 2>/dev/null &
        asked+=($!)
    done
    wait
}

# Asks where the ranks go on: `action` run (on `hosts`), requeue, stop or end, or unknown where there was no answer; `why`
# in words. Before their first start without a code, and all nodes live. Returns 1 where a signal has come.
choose_nodes() {
    local answering="${all_nodes[*]}" states='' words
    action=
    if (($#)); then
        hear probe || return 1
        answering=$said
        hear exec timeout "$ASK_SECS" sinfo -hN -n "$SLURM_JOB_NODELIST" -o '%N=%T' 2>/dev/null || return 1
        states=$said
    fi
    hear exec timeout -k 2 "$BEGIN_SECS" hpc-train next-run --nodes "$wanted_nodes" --min-nodes "$min_nodes" \
        --ranks-per-node "$per_node" --allocated "${all_nodes[*]}" --used "${used_nodes[*]}" \
        --answering "$answering" --states "$states" "$@" "${record[@]}" || return 1
    said=${said%$'\n'}
    action=${said%%$'\n'*}
    why=${said#*$'\n'}
    read -r -a words <<<"$action" || true
    action=${words[0]:-unknown}
    if [[ $action == run ]]; then
        hosts=("${words[@]:1}")
    fi
}

maybe_lost=
# The ranks have ended, and nobody has asked them to. True where they are to be started again, on the nodes left.
goes_on() {
    [[ -n ${min_nodes:-} && -z $stop && -z $still_running ]] && ! is_one_of "$code" "$FINAL_CODES $SAVED_CODES" || return 1
    ask_slurm
    [[ $(slurm_field JobState) == RUNNING ]] && ! is_preempted || return 1
    choose_nodes --code "$code" || return 1
    case $action in
        run)
            used_nodes=("${hosts[@]}")
            ((++restarts))
            export HPC_TRAIN_RESTARTS=$((earlier_restarts + restarts)) HPC_TRAIN_RESTART_REASON=$why
            echo "$me: the ranks are started again: $why"
            return 0
            ;;
        requeue)
            echo "$me: not enough nodes: $why"
            code=$EXIT_LOST_NODE # of which decide makes a requeue
            ;;
        stop)
            echo "$me: $why"
            exit "$EXIT_NOT_REQUEUED"
            ;;
        unknown)
            echo "$me: cannot find out on which nodes to go on: hpc-train next-run has not answered"
            if ((code == EXIT_STALLED || code > 128)); then # others are of a node only if one is lost
                maybe_lost=1
            fi
            ;;
    esac
    return 1
}

# With --no-kill, a job whose batch node dies stays without its script. Two of the other nodes look after that node, one
# at once and one later, and requeue the job if Slurm has taken it from it: it ends them with the job.
# shellcheck disable=SC2016
watch='job=$1 node=$2 restarts=$3 secs=$4
while sleep "$secs"; do
    record=$(timeout 20 scontrol show job "$job" 2>/dev/null) || continue
    [[ $record =~ Restarts=([0-9]+) && ${BASH_REMATCH[1]} == "$restarts" ]] || exit 0
    [[ $record =~ JobState=RUNNING ]] || continue
    [[ $record =~ [[:space:]]NodeList=([^[:space:]]+) ]] || continue
    left=$(timeout 20 scontrol show hostnames "${BASH_REMATCH[1]}") || continue
    state=$(timeout 20 sinfo -hN -n "$node" -o %T) || continue
    [[ " "$(echo $left)" " != *" $node "* || $state == down* ]] || continue
    sleep "$((SLURM_PROCID * 20))"
    ((SLURM_PROCID == 0 || ++seen > 1)) || continue
    timeout 20 scontrol requeue "$job"
done'
watch_batch_node() {
    local node others=()
    [[ -n ${min_nodes:-} && -n ${SLURMD_NODENAME:-} ]] || return 0
    [[ -z $watcher ]] || kill "$watcher" 2>/dev/null || true
    watcher=
    for node in "${used_nodes[@]}"; do
        [[ $node == "$SLURMD_NODENAME" ]] || others+=("$node")
    done
    others=("${others[@]:0:2}")
    ((${#others[@]})) || return 0
    keep_watching "${others[@]}" &
    watcher=$!
}
# Such a step on these nodes, again where Slurm has ended it: what cancels a step on a dead node reaches that node when it
# is back, and ends the step of that number of the job's next run. The step outlives its srun on the batch node.
keep_watching() {
    local step=
    trap '[[ -z $step ]] || kill "$step" 2>/dev/null; exit' TERM
    trap - EXIT
    trap '' USR1
    while true; do
        srun --overlap --no-kill --kill-on-bad-exit=0 --nodes="$#" --ntasks="$#" --ntasks-per-node=1 \
            --nodelist="$(IFS=, && echo "$*")" --input=none --output=none --error=none \
            bash -c "$watch" - "$job" "$SLURMD_NODENAME" "${SLURM_RESTART_COUNT:-0}" "$WATCH_SECS" >/dev/null 2>&1 &
        step=$!
        wait "$step" || true
        sleep "$WATCH_SECS" &
        step=$!
        wait "$step" || true
    done
}

# ---- run

# srun leaves with the highest code of the ranks, and kills those that are left when one fails: that is 137, whatever the
# first one's was. What it writes of each end is kept, to find that; what only says that it ends the others is left out.
notes_pid=
start_by_srun() {
    local errors
    exec {errors}> >(trap '' USR1 TERM; exec sed -u "/^srun: cluster configuration lacks support for cpu binding/d
            /^srun: \(launch\/slurm: [_a-z]*: \)\{0,1\}\(Force \)\{0,1\}Terminat/d
            /^srun: Job step aborted: Waiting /d; /^srun: forcing job termination/d
            /^slurmstepd[^ ]*: error: [*]* STEP [^ ]* ON [^ ]* CANCELLED AT [^ ]* [*]*$/d
            /^srun: error: /w $session/notes" >&2)
    notes_pid=$!
    "${command[@]}" 2>&"$errors" {errors}>&- &
    ranks_pid=$!
    exec {errors}>&-
}
# Sets `code` to that of the first rank that has ended.
read_srun_notes() {
    local notes
    [[ -n $still_running ]] || wait "$notes_pid" || true
    notes_pid=
    notes=$(<"$session/notes") || notes=
    if [[ $notes == *"Node failure on "* ]]; then
        code=$EXIT_LOST_NODE
    elif ! ((code == 0)) && [[ $notes =~ :\ tasks?\ [0-9,-]+:\ ([^$'\n']*) ]]; then
        case ${BASH_REMATCH[1]} in
            "Exited with exit code "*) code=${BASH_REMATCH[1]##* } ;;
            # that of one that called MPI_Abort is below 128, and comes after the end of those that it has killed
            Killed*) ((code < 128)) || code=137 ;;
            "Out Of Memory"*) code=137 ;;
            "Illegal instruction"*) code=132 ;;
            Aborted*) code=134 ;;
            "Bus error"*) code=135 ;;
            "Floating point exception"*) code=136 ;;
            "Segmentation fault"*) code=139 ;;
        esac
    fi
}
run_ranks() {
    if [[ -n ${program:-} && -z $stop ]]; then
        timeout "$BEGIN_SECS" hpc-train record-begin "${record[@]}" --ranks "$ranks" --pid "$$" || true
    fi
    code=$EXIT_STOPPED
    if [[ -z $stop && $launcher == srun && -z ${alone:-} ]]; then
        start_by_srun
    elif [[ -z $stop ]]; then
        "${command[@]}" &
        ranks_pid=$!
    fi
    still_running=
    polls=0
    while [[ -n $ranks_pid ]] && kill -0 "$ranks_pid" 2>/dev/null; do
        if [[ -z $stop ]]; then
            wait "$ranks_pid" || true # a signal that is trapped ends the wait early
        elif time_is_up; then
            still_running=1
            break
        else
            ((++polls % 5)) || signal_ranks # again: an mpirun that is still starting them signals none
            sleep 1 &
            wait $! || true
        fi
    done
    if [[ -n $ranks_pid && -z $still_running ]]; then
        code=0
        wait "$ranks_pid" || code=$?
        if ((code < 0 || code > 255)); then # bash loses it, and reports -1, where a signal comes as the ranks end
            case $stop in
                USR1) code=138 ;;
                TERM) code=143 ;;
                *) code=$EXIT_FAILED ;;
            esac
        fi
    fi
    ranks_pid=
    [[ -z $notes_pid ]] || read_srun_notes
}
if [[ -n ${min_nodes:-} ]] && ((${spare_nodes:-0} > 0)); then
    if choose_nodes && [[ $action == run ]]; then # without nodes that are known to be slow
        [[ -z $why ]] || echo "$me: $why"
        used_nodes=("${hosts[@]}")
    fi
    hosts=("${used_nodes[@]}")
fi
while true; do
    set_command
    watch_batch_node
    run_ranks
    if ((code == 0)) || ! goes_on; then
        break
    fi
done
if ((code == 0)); then
    if [[ -n ${program:-} ]]; then
        if [[ $stop == TERM ]]; then
            ask_slurm
            see_whether_cancelled
        fi
        record_end || true
    fi
    exit 0
fi

# ---- requeue or end

# Sets `why` to the reason for which the job goes back into the queue, or to nothing. Slurm ends a job that was cancelled
# or has passed its limit in other states than RUNNING. A preempted job that ends by itself in its grace time stays so.
decide() {
    why=
    ask_slurm
    see_whether_cancelled
    if [[ $(slurm_field Requeue) == 0 ]] || is_one_of "$code" "$FINAL_CODES"; then
        return
    elif [[ $(slurm_field Reason) == TimeLimit ]]; then # it came without a warning
        why=warning
    elif [[ -n $job_record && $(slurm_field JobState) != RUNNING ]]; then
        return
    elif is_preempted; then # with any code: Slurm may have ended the ranks of other nodes
        why=preemption
    elif [[ $stop == USR1 ]] && ! is_one_of "$code" "$UNREQUEUED_CODES"; then
        why=warning
    elif [[ $stop == TERM ]]; then # save, and end
        return
    elif ((code == EXIT_LOST_NODE)) || [[ -n $maybe_lost ]]; then # Slurm would, had mpirun not ended before it noticed
        why=lost-node
    fi
}

leave_if_back_in_queue() {
    if is_back_in_queue; then
        record_end --requeue preemption || true
        exit "$code"
    fi
}

decide
leave_if_back_in_queue
if [[ -n $why ]]; then
    if [[ -n $still_running ]]; then
        echo "$me: no time is left to wait for the ranks' checkpoint; the job will go on from the one before." \
            "Have Slurm warn earlier: sbatch --signal=B:USR1@600, with HPC_TRAIN_WARNING_SECS=600"
    fi
    refused=0
    record_end --requeue "$why" || refused=$?
    if ((refused == EXIT_NOT_REQUEUED)); then # it has printed why; any other failure of it does not matter here
        exit "$EXIT_NOT_REQUEUED"
    fi
    if [[ -n $job_record ]]; then # where scontrol hangs, it has cost its time once
        decide                    # it may have been cancelled meanwhile
    fi
fi
if [[ -z $why ]]; then
    record_end || true
    if is_one_of "$code" "$SAVED_CODES"; then
        echo "$me: stopped after saving; submit again to continue:$(printf ' %q' "${again[@]}")"
    fi
    exit "$code"
fi
# Slurm ends what this script has started as soon as the job is requeued; it is to answer all the same.
# shellcheck disable=SC2016
requeue='trap "" TERM; exec scontrol requeue "$1"'
if problem=$(trap "" TERM; timeout "$ASK_SECS" bash -c "$requeue" - "$job" 2>&1); then
    echo "$me: the job is back in the queue ($why)"
    sleep 60 >/dev/null 2>&1 & # Slurm ends this script before that
    wait $! || true
    exit "$code"
fi
if [[ -n $job_record ]]; then
    decide
    leave_if_back_in_queue
fi
if [[ -n $cancelled ]]; then
    record_end || true
    exit "$code"
fi
code=$EXIT_NOT_REQUEUED
record_end || true
echo "$me: stopped, and not back in the queue (${problem:-scontrol does not answer}). Type where scontrol works:" \
    "scontrol requeue $job"
echo "$me: or, once Slurm has forgotten the job:$(printf ' %q' "${again[@]}")"
exit "$code"
