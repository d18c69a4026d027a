#!/bin/bash
# Runs a rank of a heterogeneous job with as many threads as its component gives it: het_rank.sh THREADS COMMAND...
# THREADS is RANKS:THREADS of each component, such as "1:8 16:4": rank 0 has eight threads, each of the next sixteen four.
set -euo pipefail
rank=$OMPI_COMM_WORLD_RANK
for component in $1; do
    if ((rank < ${component%:*})); then
        export OMP_NUM_THREADS=${component#*:}
        break
    fi
    rank=$((rank - ${component%:*}))
done
exec "${@:2}"
