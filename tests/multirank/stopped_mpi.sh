#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that stop or die under Open MPI: stopped_mpi.sh RUN_MPI PROGRAM MODULE. Output: TAP.
set -uo pipefail

run=$1 program=$2 module=$3
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun here (openmpi-bin)"
    exit 0
fi
echo 1..2
said=$("$run" 3 "$program" "$module" stop 2>&1)
if grep -q "all ranks came to the end" <<<"$said" && grep -q "is stopped" <<<"$said"; then
    echo "ok 1 - a stopped rank is named on all others in time, and told when it goes on"
else
    echo "not ok 1 - a stopped rank is named on all others in time, and told when it goes on"
fi
printf '%s\n' "$said" | sed 's/^/# /'
# Open MPI 4 ends the whole job, by itself and soon: our own limit would say nothing of a signal.
said=$("$run" 3 "$program" "$module" kill 2>&1)
if grep -q "exited on signal 9" <<<"$said" && ! grep -q "came to the end" <<<"$said"; then
    echo "ok 2 - the launcher ends the job of a killed rank"
else
    echo "not ok 2 - the launcher ends the job of a killed rank"
fi
printf '%s\n' "$said" | sed 's/^/# /'
