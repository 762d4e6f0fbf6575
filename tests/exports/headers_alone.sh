#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, twice in one file, as C99 and as C++17, without a warning.
# usage: headers_alone.sh INCLUDE_DIRECTORY CC CXX. Output: TAP.
set -euo pipefail

include=$1 cc=$2 cxx=$3
number=0

# alone LANGUAGE STANDARD COMPILER HEADER
alone() {
    local verdict=ok said
    number=$((number + 1))
    said=$(printf '#include <%s>\n#include <%s>\nextern int stw_something;\n' "$4" "$4" |
        "$3" -x "$1" -std="$2" -Wall -Wextra -Wpedantic -Werror -fsyntax-only \
            -I"$include" - 2>&1) || verdict='not ok'
    printf '%s %d - %s as %s\n' "$verdict" "$number" "$4" "$2"
    [[ -z $said ]] || printf '%s\n' "$said" | sed 's/^/# /'
}

cd -- "$include"
shopt -s nullglob
for header in stepwell/*.h; do
    alone c c99 "$cc" "$header"
    alone c++ c++17 "$cxx" "$header"
done
for header in stepwell/*.hpp stepwell/hpp/*.hpp; do
    alone c++ c++17 "$cxx" "$header"
done
printf '1..%d\n' "$number"
