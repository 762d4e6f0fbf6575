#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The suite of collective drivers over MPI, on 1 to 4 ranks of this machine. Nothing here can hang
# longer than its timeout.
# usage: mpi.sh PROGRAM MODULE SANITIZER. Output: TAP.
set -uo pipefail

program=$1 module=$2 sanitizer=$3
number=0
# As root, on fewer cores than ranks, and where a container forbids reading another process.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
export GTEST_COLOR=no OMPI_MCA_btl=self,vader OMPI_MCA_plm=isolated

# MPI itself keeps memory to the end.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
if [[ $sanitizer == *thread* ]]; then
    echo "1..0 # SKIP one thread of each rank calls the driver here; tests/multirank has several"
    exit 0
fi
if ! command -v mpirun >/dev/null; then
    echo "1..0 # SKIP mpirun not found (openmpi-bin)"
    exit 0
fi
# The build directory may be one that others write to; a module is not loaded from there.
work=$(mktemp -d /tmp/stepwell-ranks-XXXXXX)
trap 'rm -rf "$work"' EXIT
cp "$module" "$work" && chmod 0644 "$work"/*.so
module=$work/${module##*/}
export TMPDIR=$work
cd "$work" || exit 1

# check TITLE WORDS COMMAND...: status 0, and words that it says.
check() {
    local title=$1 words=$2 said found verdict=ok
    number=$((number + 1))
    said=$(timeout -k 5 60 "${@:3}" 2>&1)
    found=$?
    ((found == 0)) && grep -qF -- "$words" <<<"$said" || verdict='not ok'
    printf '%s %d - %s\n' "$verdict" "$number" "$title"
    grep -A 1 -F ': Skipped' <<<"$said" | sed 's/^/# /'
    [[ $verdict == ok ]] || printf '# exit status %d\n%s\n' "$found" "$said" | sed 's/^/# /'
}

for ranks in 1 2 3 4; do
    check "$ranks ranks: the suite" "[  PASSED  ]" \
        mpirun -np "$ranks" "$program" "$module" multiple --gtest_filter='Ranks.*:Mpi.*'
done
check "an MPI without threads" "[  PASSED  ] 1 test" \
    mpirun -np 2 "$program" "$module" single --gtest_filter='MpiSingle.*'
check "MPI ends before its groups" "[  PASSED  ] 1 test" \
    mpirun -np 2 "$program" "$module" multiple --gtest_filter='MpiEnd.*'
check "no MPI" "[  PASSED  ] 1 test" "$program" "$module" none --gtest_filter='MpiNone.*'
printf '1..%d\n' "$number"
