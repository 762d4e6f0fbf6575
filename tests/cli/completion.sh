#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The completion of the command offers commands first, then flags and directories.
# usage: completion.sh COMPLETION
set -euo pipefail

# shellcheck source=/dev/null
source "$1"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/disk"
: >"$work/file"

# offers EXPECTED WORD...: the last word is the one to complete.
offers() {
    local expected=$1
    shift
    COMP_WORDS=(stepwell "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _stepwell
    [[ ${COMPREPLY[*]} == "$expected" ]] && return
    echo "stepwell $*: offers '${COMPREPLY[*]}', not '$expected'"
    exit 1
}
offers 'info tune bench report top simulate estimate version --help --version' ''
offers 'info' in
offers '--help --json' info -
offers '--help --json --output --seconds --size' tune -
offers '--help --json --seconds --size' bench --
offers '--help --output' report -
offers "$work/file" report "$work/f"
offers "$work/file" report run.json -o "$work/f"
offers '--help --json --once' top -
offers "$$" top "$$"
asks='--activations --json --exposed-update --gpu-flops --gpu-memory --no-overlap --optimizer'
offers "--help $asks --ranks --tokens" estimate --
offers '--sweep' simulate --sw
offers "$work/file" simulate "$work/f"
offers "$work/file" simulate m n -o "$work/f"
offers '' estimate m n --ranks ''
offers '' estimate m n --optimizer ''
offers '--help' version -
offers "$work/disk" tune --seconds 5 "$work/"
offers "$work/file" tune --output "$work/f"
offers '' tune --size ''
offers "$work/disk" info "$work/"
offers '' version x
