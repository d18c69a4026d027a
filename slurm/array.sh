#!/bin/bash
# Trains one job file with different settings, as the tasks of a job array.
#
#   sbatch --array=0-3 slurm/array.sh my/job.yaml my/overrides.txt
#   sbatch --array=0-99%8 slurm/array.sh my/job.yaml my/overrides.txt    a hundred of them, eight at a time
#
# Task k takes line k + 1 of overrides.txt, which has settings KEY=VALUE with blanks between them, each for --set of
# "hpc-train train"; a value has no blanks. Empty lines, and lines that begin with #, do not count:
#
#   train.max_steps=500 params.learning_rate=0.01
#   train.max_steps=500 params.learning_rate=0.001 params.hidden=[64,64]
#
# The job-dir of a task is runs/<name of the job>-<number of the array>_<task>. Arguments after overrides.txt go to
# every task's "hpc-train train" as well. A task that is stopped is requeued alone, as jobs of train.sh do,
# which runs it; HPC_TRAIN_HOME, HPC_TRAIN_MODULES and HPC_TRAIN_WARNING_SECS are read as there.

#SBATCH --job-name=hpc_train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=01:00:00
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
# With GPUs, one rank for each: take one # off the next line, or pass --gpus-per-node=2 to sbatch.
##SBATCH --gpus-per-node=2

set -euo pipefail

fail() {
    echo "array.sh: $1" >&2
    exit 2
}

stop= # as in train.sh
trap 'stop=USR1' USR1
trap 'stop=TERM' TERM

[[ -n ${SLURM_ARRAY_TASK_ID:-} ]] ||
    fail "this runs as a job array: submit it with 'sbatch --array=0-3 slurm/array.sh JOB.yaml OVERRIDES.txt'"
(($# >= 2)) || fail "a job file and a file of settings are needed: JOB.yaml OVERRIDES.txt"
job_file=$1
overrides=$2
shift 2
[[ -r $job_file ]] || fail "$job_file: there is no such job file"
[[ -r $overrides ]] || fail "$overrides: there is no such file of settings"

# ---- the checkout, as in train.sh
home=${HPC_TRAIN_HOME:-}
if [[ -z $home && -f ${SLURM_SUBMIT_DIR:-.}/slurm/array.sh ]]; then
    home=$SLURM_SUBMIT_DIR
elif [[ -z $home ]]; then
    command_line=$'Command=([^\n]*)/slurm/array\\.sh'
    if [[ $(scontrol show job "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID") =~ $command_line ]]; then
        home=${BASH_REMATCH[1]}
    fi
fi
[[ -f $home/slurm/train.sh ]] ||
    fail "no checkout of hpc_train at '$home': submit from the checkout, or set HPC_TRAIN_HOME to it"

# ---- this task's line
count=0
settings=
while read -r line || [[ -n $line ]]; do
    if [[ -n $line && $line != \#* ]]; then
        if ((count == SLURM_ARRAY_TASK_ID)); then
            settings=$line
        fi
        ((++count))
    fi
done < <(tr -d '\r' <"$overrides")
((count > 0)) || fail "$overrides has no line of settings"
((SLURM_ARRAY_TASK_ID < count)) ||
    fail "$overrides has $count lines of settings, so there is none for task $SLURM_ARRAY_TASK_ID: --array=0-$((count - 1))"
read -r -a words <<<"$settings"
arguments=("$job_file")
for word in "${words[@]}"; do
    [[ $word == ?*=* ]] || fail "$overrides: '$word' in the line of task $SLURM_ARRAY_TASK_ID is not KEY=VALUE"
    arguments+=(--set "$word")
done

# ---- its job-dir
name=$(sed -n "s/^name:[[:space:]]*[\"']\{0,1\}\([A-Za-z][A-Za-z0-9_]*\).*/\1/p" "$job_file" | head -n 1)
if [[ -z $name ]]; then # hpc-train reports what is wrong with it
    name=array
fi
job_dir=runs/$name-${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID

echo "array.sh: task $SLURM_ARRAY_TASK_ID: $settings"
export HPC_TRAIN_HOME=$home
# shellcheck source=slurm/train.sh
source "$home/slurm/train.sh" "${arguments[@]}" "$@" --job-dir "$job_dir"
