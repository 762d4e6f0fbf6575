# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of the command stepwell for bash.
_stepwell() {
    local word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'info tune bench report version --help --version' -- "$word")
    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} =~ ^(-o|--output)$ ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == --s* ]]; then
        return # a number
    elif [[ $word == -* ]]; then
        local flags='--help'
        case ${COMP_WORDS[1]} in
        info) flags+=' --json' ;;
        tune) flags+=' --json --output --seconds --size' ;;
        bench) flags+=' --json --seconds --size' ;;
        report) flags+=' --output' ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word")
    elif [[ ${COMP_WORDS[1]} =~ ^(info|tune|bench)$ ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    elif [[ ${COMP_WORDS[1]} == report ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -F _stepwell stepwell
