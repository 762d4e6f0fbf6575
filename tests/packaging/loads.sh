#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library loads where it is wanted: by dlopen into programs with and without jemalloc, into a
# program on another C++ runtime, and into Python.
# usage: loads.sh SOURCE LIBRARY VERSION CC CXX. Output: TAP.
set -euo pipefail

source=$1 library=$2 version=$3 cc=$4 cxx=$5
folder=$source/tests/packaging
# shellcheck source=tests/packaging/tap.sh
. "$folder/tap.sh"

readonly WARNINGS=(-Wall -Wextra -Wpedantic -Werror)
# With the directory of the other C++ runtime's libraries; no -dev package of theirs is needed, as
# such packages push out others.
readonly OTHER_RUNTIME=(-l:libc++.so.1 -l:libc++abi.so.1)

# links COMPILER FLAG...: whether a program can be linked to them.
links() { echo 'int main(void) { return 0; }' | "$1" -x c - "${@:2}" -o "$work/links" 2>"$work/said"; }

# by_dlopen NAME FLAG...
by_dlopen() {
    "$cc" -std=c99 -D_GNU_SOURCE -DBY_DLOPEN "${WARNINGS[@]}" -I"$source/include" \
        "$folder/outside/round_trip.c" "${@:2}" -o "$work/$1"
    (cd "$work" && "./$1" "$library")
}
other_runtime() {
    "$cxx" -std=c++17 "${WARNINGS[@]}" -I"$source/include" -fPIE -c "$folder/other_runtime.cpp" \
        -o "$work/other_runtime.o"
    # By the C compiler's driver, which adds no C++ runtime of its own. Theirs goes first, so that
    # the loader looks there first.
    "$cc" "$work/other_runtime.o" -Wl,--no-as-needed "${OTHER_RUNTIME[@]}" "$library" \
        -Wl,-rpath,"$(dirname "$library")" -o "$work/other_runtime"
    grep -q 'libc++abi.so.1' <<<"$(needs "$work/other_runtime")"
    if grep -q 'libstdc++' <<<"$(needs "$work/other_runtime")"; then return 1; fi
    (cd "$work" && ./other_runtime)
}

check "into a program by dlopen" by_dlopen plain
if links "$cc" -ljemalloc; then
    check "into a program that uses jemalloc" by_dlopen jemalloc -DWITH_JEMALLOC -ljemalloc
else
    skip "into a program that uses jemalloc" "it is not installed (libjemalloc-dev)"
fi
if links "$cc" "${OTHER_RUNTIME[@]}"; then
    check "into a program on another C++ runtime" other_runtime
else
    skip "into a program on another C++ runtime" "libc++ is not installed (libc++1, libc++abi1)"
fi
check "into Python" python3 -B "$folder/load.py" "$library" "$version"
done_testing
