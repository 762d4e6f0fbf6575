# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of the command stepwell for bash.
_stepwell() {
    local word=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'info version --help' -- "$word")
    elif [[ $word == -* ]]; then
        local flags='--help'
        [[ ${COMP_WORDS[1]} == info ]] && flags='--help --json'
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word")
    elif [[ ${COMP_WORDS[1]} == info ]]; then
        compopt -o filenames 2>/dev/null || true
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    fi
}
complete -F _stepwell stepwell
