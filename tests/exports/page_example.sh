#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first C program on a page, as printed there, compiles as C99 without a warning and runs.
# usage: page_example.sh PAGE INCLUDE_DIRECTORY LIBRARY CC [FLAG...]
set -euo pipefail

page=$1 include=$2 library=$3 cc=$4
shift 4

# In the build directory, on whatever file system the build is on: /tmp may be a tmpfs.
work=$(mktemp -d "$PWD/page-example-XXXXXX")
trap 'rm -rf "$work"' EXIT

# shellcheck disable=SC2016  # the fence of a code block, not a command
awk '/^```c$/ { inside = 1; next } /^```$/ && inside { exit } inside' "$page" >"$work/program.c"
[[ -s $work/program.c ]] || { echo "$page has no C program" && exit 1; }
"$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror "$@" -I"$include" "$work/program.c" "$library" \
    -Wl,-rpath,"$(dirname "$library")" -o "$work/program"
cd "$work"
./program
left=$(find . -type f ! -name program ! -name program.c ! -name report.json)
[[ -z $left ]] || { echo "the program left files behind: $left" && exit 1; }
