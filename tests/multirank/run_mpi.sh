#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One program on N ranks of Open MPI: run_mpi.sh N PROGRAM ARGUMENTS... More ranks than cores are
# meant, and a job that hangs is ended, as Open MPI never ends one by itself. A module among the
# arguments is used as a copy: the build directory may be one that others write to.
set -euo pipefail

ranks=$1 program=$2
shift 2
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun here (openmpi-bin)"
    exit "${STW_MPI_SKIPPED:-0}" # 77 is what those say that are no TAP
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Sandboxes may not let processes read each other's memory, and need no network for one host.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader OMPI_MCA_plm=isolated
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
# Open MPI is not built with the thread sanitizer: what calls of libc read and write is left out.
export TSAN_OPTIONS=${TSAN_OPTIONS:+$TSAN_OPTIONS:}ignore_noninstrumented_modules=1
work=$(mktemp -d /tmp/stepwell-ranks-XXXXXX)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work
arguments=()
for argument in "$@"; do
    if [[ $argument == *.so ]]; then
        cp "$argument" "$work"
        argument=$work/${argument##*/}
        chmod 0644 "$argument"
    fi
    arguments+=("$argument")
done
timeout --kill-after=10 "${STW_MPI_SECONDS:-100}" \
    mpirun --oversubscribe -np "$ranks" "$program" "${arguments[@]}"
