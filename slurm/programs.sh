# shellcheck shell=bash
# shellcheck disable=SC2154
# Loads modules and puts the checkout's own programs first on PATH. Sourced by train.sh and benchmark.sh, with:
#   home     the checkout
#   fail     a function that prints its argument and ends the script
# Read from the environment: HPC_TRAIN_MODULES, the modules to load, separated by spaces.

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
export PATH
command -v hpc-train >/dev/null || fail "no hpc-train in $home/.venv or on PATH: run 'make setup' first"
