#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One program on N ranks of Open MPI: run_mpi.sh N PROGRAM MODULE ARGUMENTS... More ranks than cores
# are meant, and a job that hangs is ended, as Open MPI never ends one by itself.
set -euo pipefail

ranks=$1 program=$2 module=$3
shift 3
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP no mpirun here (openmpi-bin)"
    exit 0
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Sandboxes may not let processes read each other's memory, and need no network for one host.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_btl=self,vader
export OMPI_MCA_plm_rsh_agent=/bin/false OMPI_MCA_mpi_yield_when_idle=1
# The build directory may be one that others write to; a module is not loaded from there.
work=$(mktemp -d /tmp/stepwell-ranks-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp "$module" "$work" && chmod 0644 "$work"/*.so
export TMPDIR=$work
timeout --kill-after=10 "${STW_MPI_SECONDS:-100}" mpirun --oversubscribe -np "$ranks" \
    "$program" "$work/${module##*/}" "$@"
