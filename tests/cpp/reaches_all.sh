#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tests of stepwell.hpp reach every function of the C API, and through the wrapper alone: inline
# functions that nobody calls leave no reference behind.
# usage: reaches_all.sh PROGRAM LIBRARY SOURCE...
set -euo pipefail

program=$1 library=$2
shift 2

direct=$(grep -nE '\bstw_[a-z0-9_]+\(' "$@" || true)
[[ -z $direct ]] || { printf 'called directly:\n%s\n' "$direct" && exit 1; }
missing=$(comm -23 \
    <(nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sed 's/@.*//' | sort) \
    <(nm -D --undefined-only "$program" | awk '{ print $2 }' | sed 's/@.*//' | sort))
[[ -z $missing ]] || { printf 'not reached:\n%s\n' "$missing" && exit 1; }
