#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs built against the committed baseline of the ABI run with this library: functions and
# members at the end of structs may have come, nothing has gone or changed.
# usage: abi.sh SOURCE LIBRARY
set -euo pipefail

source=$1 library=$2

if ! command -v abidw >/dev/null; then
    echo "skipped: libabigail is not installed (abigail-tools)"
    exit 77
fi
work=$(mktemp -d "$PWD/abi-XXXXXX")
trap 'rm -rf "$work"' EXIT

"$source/scripts/abi-baseline" "$library" "$work/found.abi"
if ! grep -q "<function-decl name='stw_runtime_open'" "$work/found.abi"; then
    echo "skipped: the library has no debugging information"
    exit 77
fi
abidiff --no-added-syms --suppressions "$source/tests/exports/abi/growth.suppr" \
    "$source/tests/exports/abi/stepwell.abi" "$work/found.abi" && exit 0
cat <<'WHAT_TO_DO'
This build is not what programs were built with. Give a changed function or struct a new name, and
let structs grow at their end only. If the break is meant, raise abi_major in meson.build and the
node in lib/stepwell.map. If it is not released yet, or was raised, run scripts/abi-baseline.
WHAT_TO_DO
exit 1
