#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs that are killed while they commit: killed_mpi.sh RUN_MPI PROGRAM MODULE. Output: TAP.
set -uo pipefail

run=$1 program=$2 module=$3
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun here (openmpi-bin)"
    exit 0
fi
readonly RANKS=4
# Until the kill, in microseconds: in the first commit, in some later one.
readonly TIMES=(2000 30000 90000 200000 420000)
directory=$(mktemp -d "$PWD/killed-ranks-XXXXXX")
trap 'rm -rf "$directory"' EXIT
echo "1..$((${#TIMES[@]} + 1))"
number=0
for time in "${TIMES[@]}"; do
    victim=$((number % RANKS))
    number=$((number + 1))
    said=$("$run" "$RANKS" "$program" "$module" "$directory" "$victim" "$time" 2>&1)
    # It is to end by the signal, and not by anything that did not hold.
    result="not ok"
    if grep -q "exited on signal 9" <<<"$said" && grep -q "all ranks find generation" <<<"$said" &&
        ! grep -q "does not hold" <<<"$said"; then
        result=ok
    fi
    echo "$result $number - rank $victim is killed after $time us; all had found one generation"
    printf '%s\n' "$said" | sed 's/^/# /'
done
said=$("$run" "$RANKS" "$program" "$module" "$directory" -1 0 2>&1)
result=ok
grep -q "all ranks came to the end" <<<"$said" || result="not ok"
echo "$result $((number + 1)) - all ranks find the same one, whole, and none reported is lost"
printf '%s\n' "$said" | sed 's/^/# /'
