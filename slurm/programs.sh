# shellcheck shell=bash
# shellcheck disable=SC2154
# Loads modules, puts the checkout's own programs first on PATH, and sets what the site file sets (docs/sites.md). Sourced
# by the scripts that are submitted, with:
#   home     the checkout
#   fail     a function that prints its argument and ends the script
# Read from the environment: HPC_TRAIN_MODULES, the modules to load, separated by spaces, instead of those of the site
# file; HPC_TRAIN_SITE, the site file. Where Python itself needs a module, HPC_TRAIN_MODULES has to name it.

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
if [[ -e ${HPC_TRAIN_SITE:-/etc/hpc_train/site.yaml} || -n ${HPC_TRAIN_SITE:-} ]]; then
    site=$(hpc-train site --shell) || fail "the site file cannot be used: see above"
    # shellcheck source=/dev/null
    source /dev/stdin <<<"$site"
    if [[ -d $home/.venv/bin ]]; then # before what a module has put there
        PATH=$home/.venv/bin:$PATH
    fi
fi
