#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The hit path makes no system call, waiting (futex) included: between its two marks the calling
# thread makes none in 10,000 rounds. Only its own are looked at, since those of the library's
# threads depend on timing. A fetch of many tensors under the lock may wait, but its memory comes
# from earlier calls: it does not grow and shrink the heap, which costs a page fault for each page.
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

# calls_between PATTERN ARGUMENTS...: the system calls between the marks that match.
calls_between() {
    pattern=$1
    shift
    strace -o hit-path.strace "$program" "$@"
    marks=$(grep -c '^getppid(' hit-path.strace || true)
    between=$(sed -n '/^getppid(/,/^getppid(/p' hit-path.strace | sed '/^getppid(/d' |
        grep -E "$pattern" || true)
    rm -f hit-path.strace
    if [ "$marks" -ne 2 ]; then
        echo "the program made its mark $marks times, not twice"
        exit 1
    fi
    if [ -n "$between" ]; then
        echo "system calls of $1 rounds:"
        echo "$between" | head -n 20
        exit 1
    fi
}
calls_between . 10000
echo "no system call in 10000 rounds"
calls_between '^(brk|mmap|munmap|madvise)\(' 100 locked
echo "no change of the heap in 100 rounds under the lock"
