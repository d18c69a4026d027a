# shellcheck shell=bash
# shellcheck disable=SC2154
# Looks into the container of a job, and puts what runs the ranks in it before their command. A part of slurm/train.sh and of
# the scripts that "hpc-train submit" writes, with command, record, launcher and me as slurm/ranks.sh has them. Where the
# job cannot run in its container it says why, and ends the script.

# The ranks, for which /tmp of the node is /tmp, meet mpirun and its helpers in folders there.
if [[ ${TMPDIR:-/tmp} != /tmp && ${TMPDIR:-/tmp} != /tmp/* ]]; then
    echo "$me: TMPDIR is /tmp for ranks in a container, not $TMPDIR"
    export TMPDIR=/tmp OMPI_MCA_orte_remote_tmpdir_base=/tmp
fi
inside=()
mapfile -d '' -t inside < <(exec hpc-train in-container --launcher "$launcher" "${record[@]}")
((${#inside[@]})) || inside=(1) # it has been ended
checked=${inside[${#inside[@]} - 1]}
[[ $checked == 0 ]] || exit "$checked"
unset "inside[${#inside[@]} - 1]"
case ${command[0]} in
    hpc-train) command=(python3 -m hpc_train "${command[@]:1}") ;;
    python) command=(python3 "${command[@]:1}") ;;
esac
command=("${inside[@]}" "${command[@]}")
