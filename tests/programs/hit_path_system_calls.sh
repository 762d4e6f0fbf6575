#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The hit path makes no system call: the calling thread makes as many in a run of 100 rounds as in
# one of 10,000. Only its own are looked at, since those of the library's threads depend on timing.
# usage: hit_path_system_calls.sh PROGRAM
set -eu

program=$1
case $program in
*/*) ;;
*) program=./$program ;;
esac
if ! command -v strace >/dev/null; then
    echo "skipped: strace is not installed"
    exit 77
fi
if ! strace -o /dev/null true 2>/dev/null; then
    echo "skipped: this machine does not let strace trace"
    exit 77
fi

# Waiting (futex) depends on when the library's threads answer while tensors are filled.
calls() {
    strace -o hit-path.strace -e 'trace=!futex' "$program" "$1"
    wc -l <hit-path.strace
    rm -f hit-path.strace
}

few=$(calls 100)
many=$(calls 10000)
echo "$few system calls for 100 rounds, $many for 10000"
# Ten to spare for what memory allocation does at the edges of the run.
[ $((many - few)) -le 10 ] && [ $((few - many)) -le 10 ]
