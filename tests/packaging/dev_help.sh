#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Who asks ./dev for help gets it at once, before anything is installed, configured or built.
# usage: dev_help.sh SOURCE. Output: TAP.
set -euo pipefail

source=$1
# shellcheck source=tests/packaging/tap.sh
. "$source/tests/packaging/tap.sh"

# A tree that nothing can be built from.
cp -r "$source/dev" "$source/scripts" "$source/bench" "$work"
helps() {
    (cd "$work" && ./dev "$@") | grep '^usage: '
    [[ ! -e $work/build ]]
}

for command in setup demo test bench lint install docs wheel bundle package; do
    check "./dev $command --help" helps "$command" --help
done
check "./dev demo --steps 3 -h" helps demo --steps 3 -h
check "./dev --help" helps --help
says_what_is_wrong() {
    if (cd "$work" && ./dev demo --steps 0) >"$work/wrong" 2>&1; then return 1; fi
    cat "$work/wrong"
    grep -F -- "--steps is 0; it is at least 1" "$work/wrong"
    [[ ! -e $work/build ]]
}
check "./dev demo says what is wrong before it builds" says_what_is_wrong
done_testing
