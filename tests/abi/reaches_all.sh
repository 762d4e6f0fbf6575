#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of the C API, taken together, ask the library for every function that it exports. Each
# program is compiled with unused functions as errors, so what it asks for is in a test.
# usage: reaches_all.sh LIBRARY PROGRAM...
set -euo pipefail

library=$1
shift
missing=$(comm -23 \
    <(nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sed 's/@.*//' | sort -u) \
    <(nm -D --undefined-only "$@" | awk '$1 == "U" { print $2 }' | sed 's/@.*//' | sort -u))
[[ -z $missing ]] || { printf 'not reached:\n%s\n' "$missing" && exit 1; }
