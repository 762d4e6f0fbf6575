#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is carried to a machine with a GPU, here on the double of CUDA's driver: the bytes are right,
# and the double saw nothing that a device would not forgive.
# usage: gpu_check.sh PROGRAM MODULE DOUBLE_DIRECTORY
set -euo pipefail

program=$1 module=$2 double=$3
work=$(mktemp -d /tmp/stepwell-cuda-XXXXXX)
trap 'rm -rf "$work"' EXIT
# The build directory may be one that others write to; a module is not loaded from there.
cp "$module" "$work" && chmod 0644 "$work"/*.so
export LD_LIBRARY_PATH=$double${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
check() {
    STW_CUDA_DOUBLE="seed=$1,delay_us=100,exit=3" "$program" --module "$work/${module##*/}" \
        --device-bytes 1048576 --block-bytes 65536 --operations 400 --seed "$@"
}
check 1
check 2
check 3 --nvme "$work"
status=0
STW_CUDA_DOUBLE="devices=0" "$program" --module "$work/${module##*/}" || status=$?
((status == 77)) || { echo "status $status without a device, not 77" >&2 && exit 1; }
