# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of the command stepwell for bash.
_stepwell() {
    local word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        local commands='info tune bench report top simulate estimate version --help --version'
        mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$word")
    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} =~ ^(-o|--output)$ ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} =~ ^--(s|ranks|gpu-|activations|optimizer|tokens) ]]; then
        return # a number
    elif [[ $word == -* ]]; then
        local flags='--help'
        local asks='--activations --json --exposed-update --gpu-flops --gpu-memory --no-overlap'
        asks+=' --optimizer --ranks --tokens'
        case ${COMP_WORDS[1]} in
        info) flags+=' --json' ;;
        tune) flags+=' --json --output --seconds --size' ;;
        bench) flags+=' --json --seconds --size' ;;
        report) flags+=' --output' ;;
        top) flags+=' --json --once' ;;
        simulate) flags+=" $asks --output --sweep" ;;
        estimate) flags+=" $asks" ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word")
    elif [[ ${COMP_WORDS[1]} =~ ^(info|tune|bench)$ ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    elif [[ ${COMP_WORDS[1]} =~ ^(report|simulate|estimate)$ ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    elif [[ ${COMP_WORDS[1]} == top ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(cd /proc && printf '%s ' [0-9]*)" -- "$word")
    fi
}
complete -F _stepwell stepwell
