#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The archive for machines with a GPU runs where it is unpacked, under another name, and with nothing
# of the build; the GPU is the double of CUDA's driver.
# usage: bundle.sh SOURCE BUILD. Output: TAP.
set -euo pipefail

source=$1 build=$2
# shellcheck source=tests/packaging/tap.sh
. "$source/tests/packaging/tap.sh"

# Under /tmp, since the folders above a build may be others' to write, and no module is loaded from
# there.
safe=$(mktemp -d /tmp/stw-XXXXXX)
trap 'rm -rf "$work" "$safe"' EXIT
moved=$safe/moved

double_kernels=$safe/double/libtrain-gpt-double-kernels.so
double_kernels+=:$safe/double/libstepwell-double-kernels.so

# As on another machine. The double has nothing beside it.
alone() { (cd "$safe" && env -i PATH=/usr/bin:/bin HOME="$safe" "$@"); }
on_double() {
    alone LD_LIBRARY_PATH="$safe/double" \
        STW_CUDA_DOUBLE_KERNELS="$double_kernels" "$@"
}
# status_of STATUS COMMAND...: what it said, when that is its exit status.
status_of() {
    local status=0 said
    said=$("${@:2}" 2>&1) || status=$?
    printf '%s\n' "$said"
    same "$1" "$status"
}

made() {
    python3 -B "$source/scripts/bundle" --build "$build" --out "$work/dist" --level 1
    mkdir "$safe/double"
    cp "$build"/tests/cuda/double/libcu{da.so.1,file.so.0} "$build"/tests/cuda/{kernels,train_gpt}/*-kernels.so \
        "$safe/double"
    cp "$build/tests/nccl/double/libnccl.so.2" "$safe/double"
    tar -xzf "$work"/dist/stepwell-bundle-*.tar.gz -C "$safe"
    mv "$safe"/stepwell-bundle-* "$moved"
}
finds_its_libraries() {
    local program
    for program in "$moved"/{bin,bench,tests}/* "$moved"/lib/*.so* \
        "$moved"/modules/libstepwell-{cuda,nccl}.so; do
        readelf -h "$program" >"$work/header" 2>&1 || continue
        alone ldd "$program" >"$work/needs"
        if grep -E "not found|$build" "$work/needs"; then
            printf 'of %s\n' "$program" && return 1
        fi
    done
}
says_what_is_here() { alone "$moved/bin/stepwell" info | grep -q '^stepwell '; }
loads_into_python() {
    same "$moved/python/stepwell/lib/libstepwell.so.0" "$(alone PYTHONPATH="$moved/python" \
        python3 -B -c 'import stepwell; print(stepwell._library.lib._name)')"
}
skips_without_gpu() {
    status_of 77 on_double STW_CUDA_DOUBLE=devices=0 "$moved/run-gpu-checks" >"$work/skip"
    grep -F "no GPU can be used here" "$work/skip"
    [[ ! -e $moved/results ]]
}
checks() {
    mkdir "$safe/drive"
    status_of 0 on_double "$moved/run-gpu-checks" --quick --nvme "$safe/drive" >"$work/table"
    cat "$work/table"
    grep -q "figures mean nothing" "$work/table"
    python3 - "$moved/results/summary.json" <<'PYTHON'
import json, sys
summary = json.load(open(sys.argv[1], encoding="utf-8"))
assert all(step["verdict"] == "passed" for step in summary["steps"]), summary["steps"]
names = {result["name"] for result in summary["results"]}
wanted = {f"cuda.{what}.{size}" for what in ("h2d", "d2h", "both") for size in ("64k", "1m", "16m")}
wanted |= {f"cuda.overlap.{what}" for what in ("even", "compute", "copies")}
wanted |= {"cuda.fetch_hit", "cuda.nvme", "cuda.gds", "cuda.train"}
wanted |= {f"cuda.remap{handles}{what}" for handles in ("", ".2m") for what in ("", ".thread")}
left_out = {one["name"] for one in summary["not_measured"]}
assert names == wanted | ({"cuda.update"} - left_out), names
done = {step["name"] for step in summary["steps"]}
assert "nccl.1" in done, done
reasons = {one["name"]: one["reason"] for one in summary["not_measured"]}
assert "CUDA shows 1 device" in reasons["nccl.2"], reasons
assert {"gpt", "gpt.nvme", "gpt.same", "overlap", "train"} <= done, done
assert {"memcheck", "racecheck", "initcheck"} <= left_out, left_out
PYTHON
}
collects_over_ranks() {
    on_double STW_CUDA_DOUBLE=devices=4,exit=9 "$moved/tests/ranks-nccl" \
        "$moved/modules/libstepwell-nccl.so" --ranks 4
}
skips_ranks_without_nccl() {
    mv "$safe/double/libnccl.so.2" "$safe"
    status_of 77 on_double "$moved/tests/ranks-nccl" "$moved/modules/libstepwell-nccl.so" \
        --ranks 1 >"$work/ranks"
    mv "$safe/libnccl.so.2" "$safe/double"
    tail -n 1 "$work/ranks" | grep -F "NCCL is not to be found"
}
skips_direct_reads_without_cufile() {
    mv "$safe/double/libcufile.so.0" "$safe"
    status_of 77 on_double "$moved/bench/cuda_gds" --mode probe >"$work/gds"
    mv "$safe/libcufile.so.0" "$safe/double"
    tail -n 1 "$work/gds" | grep -F "GPUDirect Storage is not here: libcufile.so.0"
    on_double "$moved/bench/cuda_gds" --mode probe
}
refuses_what_others_may_write() {
    chmod g+w "$moved/modules"
    status_of 2 on_double "$moved/run-gpu-checks" >"$work/refused"
    chmod g-w "$moved/modules"
    cat "$work/refused"
    grep -qF "chmod go-w '$moved/modules'" "$work/refused"
}

if ! command -v patchelf >/dev/null; then
    skip "the bundle" "patchelf is not installed"
elif [[ ! -x $build/tests/conformance/ranks/ranks-nccl ]]; then
    skip "the bundle" "this build has no module nccl"
elif [[ ! -e $build/tests/cuda/double/libcuda.so.1 || ! -x $build/bench/cuda_copies ||
    ! -x $build/bench/cuda_train ]]; then
    skip "the bundle" "this build has no module cuda, or no benches"
else
    check "it is made from a build, and unpacked under another name" made
    check "all in it find their libraries in it or on the machine" finds_its_libraries
    check "the command runs" says_what_is_here
    check "a program of the tests runs" alone "$moved/tests/abi-fetch"
    check "the Python package loads the library that came along" loads_into_python
    check "run-gpu-checks without a GPU is a skip" skips_without_gpu
    check "run-gpu-checks runs through, and measures all that can be" checks
    check "four ranks collect over four devices" collects_over_ranks
    check "ranks without NCCL are a skip that says so" skips_ranks_without_nccl
    check "direct reads without cuFile are a skip that says so" skips_direct_reads_without_cufile
    check "a module that others may write is refused with what to do" refuses_what_others_may_write
fi
done_testing
