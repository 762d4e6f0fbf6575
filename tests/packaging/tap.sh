#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Read by the tests of this folder: cases of TAP, in a directory of their own that goes with them.
# Not in /tmp, which may be a tmpfs: it lies below the directory the test was started in.

work=$(mktemp -d "$PWD/packaging-XXXXXX")
trap 'rm -rf "$work"' EXIT
cases=0

# check TITLE COMMAND...: a case; what the command said is shown when it failed, on stderr, which
# Meson prints. The command ends with its first line that fails, which it would not in a condition.
check() {
    local title=$1 verdict=ok status
    shift
    cases=$((cases + 1))
    set +e
    (set -e && "$@") >"$work/said" 2>&1
    status=$?
    set -e
    ((status == 0)) || verdict='not ok'
    printf '%s %d - %s\n' "$verdict" "$cases" "$title"
    [[ $verdict == ok ]] || sed 's/^/# /' "$work/said" >&2
}

# skip TITLE REASON
skip() {
    cases=$((cases + 1))
    printf 'ok %d - %s # SKIP %s\n' "$cases" "$1" "$2"
}

# same EXPECTED FOUND
same() {
    [[ "$1" == "$2" ]] || { printf 'expected: %s\nfound:    %s\n' "$1" "$2" && return 1; }
}

# needs PROGRAM: the libraries that it names itself, in one line.
needs() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort | tr '\n' ' '; }

done_testing() { printf '1..%d\n' "$cases"; }
