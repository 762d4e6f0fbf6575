#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance suite of drivers over the module cuda and the double of CUDA's driver. The exit
# status is the suite's, or the double's where it saw something that a device would not forgive.
# usage: cuda.sh PROGRAM MODULE DOUBLE_DIRECTORY KERNELS_OF_THE_DOUBLE
set -euo pipefail

program=$1 module=$2 double=$3
export STW_CUDA_DOUBLE_KERNELS=$4
work=$(mktemp -d /tmp/stepwell-cuda-XXXXXX)
trap 'rm -rf "$work"' EXIT
# The build directory may be one that others write to; a module is not loaded from there.
cp "$module" "$work" && chmod 0644 "$work"/*.so
export LD_LIBRARY_PATH=$double${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
if "$program" --memory-options colour=blue --filter '*MemoryConformance*' \
    "$work/$(basename "$module")" >"$work/said"; then
    echo "options of memory are not the driver's" >&2
    exit 1
fi
grep -q "colour=blue" "$work/said"
for seed in 1 2 3; do
    for unified in 0 1; do
        for arena in shrinks permanent registered; do
            STW_CUDA_DOUBLE="seed=$seed,delay_us=50,unified=$unified,exit=3" \
                "$program" --memory-options "arena=$arena" "$work/$(basename "$module")"
        done
    done
done
