# shellcheck shell=bash
# shellcheck disable=SC2154
# Looks into the container of a job, and puts what runs the ranks in it before their command. A part of slurm/train.sh and of
# the scripts that "hpc-train submit" writes, with command, record, program, launcher, me and stop as slurm/ranks.sh has them.
# Where the job cannot run in its container it says why, and ends the script; at a signal that comes meanwhile it goes on,
# with no rank to be started.

# The ranks, for which /tmp of the node is /tmp, meet mpirun and its helpers in folders there.
if [[ ${TMPDIR:-/tmp} != /tmp && ${TMPDIR:-/tmp} != /tmp/* ]]; then
    echo "$me: TMPDIR is /tmp for ranks in a container, not $TMPDIR"
    export TMPDIR=/tmp OMPI_MCA_orte_remote_tmpdir_base=/tmp
fi
inside=() part='' word=''
exec {answers}< <(exec hpc-train in-container --launcher "$launcher" "${record[@]}")
checker=$!
while [[ -z $stop ]]; do
    checked=0
    IFS= read -r -d '' -t 1 -u "$answers" part || checked=$?
    word+=$part
    ((checked <= 128)) || continue # that second is over
    ((checked == 0)) || break
    inside+=("$word")
    word=
done
exec {answers}<&-
if [[ -n $stop ]]; then
    kill "$checker" 2>/dev/null || true
elif ((${#inside[@]} == 0)); then
    echo "$me: what is in the container is not known: hpc-train in-container was ended" >&2
    timeout 60 hpc-train record-end --code 1 "${record[@]}" ${program:+--program} || true
    exit 1
elif [[ ${inside[${#inside[@]} - 1]} != 0 ]]; then
    exit "${inside[${#inside[@]} - 1]}"
else
    unset "inside[${#inside[@]} - 1]"
    case ${command[0]} in
        hpc-train) command=(python3 -m hpc_train "${command[@]:1}") ;;
        python) command=(python3 "${command[@]:1}") ;;
    esac
    command=("${inside[@]}" "${command[@]}")
fi
