#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs of tests, taken together, ask the library for every function that it exports. Those in C are
# compiled with unused functions as errors, so what they ask for is in a test. That of stepwell.hpp
# names no function of the C API (scripts/check-coverage), so what it asks for comes through the
# wrapper, and inline functions that nobody calls leave no reference behind.
# usage: reaches_all.sh LIBRARY PROGRAM...
set -euo pipefail

library=$1
shift
missing=$(comm -23 \
    <(nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sed 's/@.*//' | sort -u) \
    <(nm -D --undefined-only "$@" | awk '$1 == "U" { print $2 }' | sed 's/@.*//' | sort -u))
[[ -z $missing ]] || { printf 'not reached:\n%s\n' "$missing" && exit 1; }
