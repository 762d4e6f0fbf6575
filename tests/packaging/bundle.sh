#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program for machines with a GPU runs where it is unpacked, under another name, and with
# nothing of the build; the GPU is the double of CUDA's driver.
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
    mkdir -p "$safe/double" "$safe/site/nvidia/nccl/lib" "$safe/drive" "$safe/tools"
    cp "$build"/tests/cuda/double/libcu{da.so.1,file.so.0} \
        "$build"/tests/cuda/{kernels,train_gpt}/*-kernels.so "$safe/double"
    # As PyTorch brings it.
    cp "$build/tests/nccl/double/libnccl.so.2" "$safe/site/nvidia/nccl/lib"
    cp "$work"/dist/stepwell-bundle-*.run "$safe/checks.run"
    alone "$safe/checks.run" --unpack "$safe"
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
says_what_is_here() {
    alone "$moved/bin/stepwell" info >"$work/info"
    grep -q '^stepwell ' "$work/info"
}
loads_into_python() {
    same "$moved/python/stepwell/lib/libstepwell.so.0" "$(alone PYTHONPATH="$moved/python" \
        python3 -B -c 'import stepwell; print(stepwell._library.lib._name)')"
}
# PyTorch is not here: the check of its models says so, and what it would run.
checks_models() {
    alone python3 -B "$moved/bench/torch_gpu_check.py" >"$work/cases"
    grep -q '^bits *120 s$' "$work/cases"
    status_of 77 alone python3 -S -B "$moved/bench/torch_gpu_check.py" bits >"$work/said"
    grep -q 'has no PyTorch$' "$work/said"
    # The library finds the module by its name.
    alone PYTHONPATH="$moved/python" python3 -B -c 'import stepwell; stepwell.driver_info("cuda")'
}
# All that it says on a machine that has neither a GPU nor its driver, from one file.
plans_without_gpu() {
    status_of 77 alone "$safe/checks.run" --results "$safe/none" >"$work/plan"
    cat "$work/plan"
    [[ ! -e $safe/none ]]
    (($(wc -l <"$work/plan") <= 22))
    grep -q '^no GPU can be used here: this machine has no NVIDIA driver' "$work/plan"
    grep -q '^conformance *30 s: bin/stepwell-driver-conformance' "$work/plan"
    grep -q '^torch *absent: PyTorch' "$work/plan"
    grep -qE '^nccl *(absent: libnccl.so.2 is neither|30 s)' "$work/plan"
    grep -q '^nvme *absent: no directory was given' "$work/plan"
    tail -n +2 "$work/plan" | cut -d ' ' -f 1 | xargs >"$work/names"
    same "machine probe conformance check.small check.large torch fetch_hit update copies gpt" \
        "$(cut -d ' ' -f -10 "$work/names")"
    same "overlap remap kernels train nccl memcheck check.nvme nvme gds" \
        "$(cut -d ' ' -f 11- "$work/names")"
}
# A tool of NVIDIA's that does what it is told, or that the machine refuses.
sanitizer() {
    printf '#!/bin/sh\n%s\n' "$1" >"$safe/tools/compute-sanitizer"
    chmod +x "$safe/tools/compute-sanitizer"
}
# on_gpu ARGUMENT...: the checks on the double, packed into $safe/results.
on_gpu() {
    rm -rf "$safe/results"
    on_double PATH="$safe/tools:/usr/bin:/bin" PYTHONPATH="$safe/site" \
        "$moved/run-gpu-checks" --results "$safe/results" "$@"
}
verdict() { grep -oP "\"name\": \"$1\", \"verdict\": \"\K[^\"]*" "$safe/results/summary.json"; }
reason() { grep -oP "\"name\": \"$1\", \"reason\": \"\K[^\"]*" "$safe/results/summary.json"; }
packed() { [[ " $(tar -tzf "$safe/results/results.tar.gz" | xargs) " == *" $1 "* ]]; }
checks() {
    # shellcheck disable=SC2016  # of the tool
    sanitizer 'while [ "${1#--}" != "$1" ]; do shift 2; done; exec "$@"'
    status_of 0 on_gpu --nvme "$safe/drive" >"$work/table"
    cat "$work/table"
    grep -q "figures mean nothing" "$work/table"
    python3 - "$safe/results" <<'PYTHON'
import json, re, sys, tarfile
results = sys.argv[1]
summary = json.load(open(results + "/summary.json", encoding="utf-8"))
assert all(step["verdict"] == "passed" for step in summary["steps"]), summary["steps"]
names = {result["name"] for result in summary["results"]}
wanted = {f"cuda.{what}.{size}" for what in ("h2d", "d2h", "both") for size in ("64k", "2m", "16m")}
wanted |= {f"cuda.overlap.{what}" for what in ("even", "compute", "copies")}
wanted |= {"cuda.fetch_hit", "cuda.nvme", "cuda.gds", "cuda.train"}
wanted |= {f"cuda.remap{handles}{what}" for handles in ("", ".2m") for what in ("", ".thread")}
wanted |= {f"probe.{what}.2m" for what in ("touch", "register", "create", "map", "access", "unmap")}
wanted |= {f"probe.copy.2m.{what}" for what in ("plain", "event", "blocking", "batch")}
wanted |= {"probe.h2d", "probe.d2h", "probe.both", "probe.event.record"}
left_out = {one["name"] for one in summary["not_measured"]}
assert wanted <= names, wanted - names
others = {name for name in names - wanted if not name.startswith("probe.")}
assert others <= {"cuda.update"}, others
done = {step["name"] for step in summary["steps"]}
assert {"machine", "conformance", "gpt", "overlap", "train", "nccl", "memcheck"} <= done, done
assert left_out <= {"torch", "kernels", "update"}, left_out
assert summary["ended"] == "itself"
# Each figure that is short has its explanation beside it.
table = open(results + "/table.txt", encoding="utf-8").read()
short = [result["name"] for result in summary["results"] if not result["ok"]]
explained = re.findall(r"^(\S+) .*\n    short: \S", table, re.M)
assert short and explained == short, (short, explained)
packed = set(tarfile.open(results + "/results.tar.gz").getnames())
assert {"summary.json", "table.txt", "probe.json", "probe.log", "conformance.log"} <= packed, packed
log = tarfile.open(results + "/results.tar.gz").extractfile("probe.log").read().decode()
for fact in ("granularity: 2048 KiB", "over the border of two registrations", "a new stream has"):
    assert fact in log, log
PYTHON
    same "results.tar.gz summary.json table.txt" "$(cd "$safe/results" && echo *)"
}
# A step that fails is told, and the others go on; so is a sanitizer that the machine refuses.
goes_on_after_a_failure() {
    local program=$moved/bench/cuda_update
    mv "$program" "$safe/kept"
    printf '#!/bin/sh\necho broken && exit 3\n' >"$program" && chmod +x "$program"
    sanitizer 'echo "no permission to debug" && exit 1'
    status_of 1 on_gpu >"$work/table"
    mv "$safe/kept" "$program"
    cat "$work/table"
    same "failed, status 3" "$(verdict update)"
    same passed "$(verdict copies)"
    same passed "$(verdict nccl)"
    same "compute-sanitizer is refused: no permission to debug" "$(reason memcheck)"
    grep -q '^    broken$' "$work/table"
}
# An error that stays with the context: what was measured before it is kept.
probes_stop_in_a_lost_context() {
    status_of 1 on_double STW_CUDA_DOUBLE=fail=cuMemcpyHtoDAsync_v2:3:700 \
        "$moved/bench/cuda_probe" --bytes 8m --rounds 2 --json "$safe/probe.json" >"$work/probe"
    cat "$work/probe"
    grep -q '^# nothing more is measured: the context is lost' "$work/probe"
    if grep -q 'border of two registrations' "$work/probe"; then return 1; fi
    grep -q '"name": "probe.map.2m"' "$safe/probe.json"
}
# From then on figures would mean nothing; those from before are kept.
stops_when_the_device_is_lost() {
    local program=$moved/bench/cuda_probe
    mv "$program" "$program.kept"
    # shellcheck disable=SC2016  # of the program
    printf '#!/bin/sh\n[ "$2" != alive ] || echo lost\n[ "$2" = host ] && exec %q "$@"; exit 1\n' \
        "$program.kept" >"$program" && chmod +x "$program"
    status_of 1 on_gpu >"$work/table"
    mv "$program.kept" "$program"
    cat "$work/table"
    same "passed" "$(verdict machine)"
    same "failed, status 1" "$(verdict probe)"
    local lost="the device does not work any more since the step probe: lost"
    same "$lost" "$(reason conformance)"
    same "$lost" "$(reason nccl)"
    grep -q '"name": "probe.touch.2m"' "$safe/results/summary.json"
    packed alive.log
}
names_what_there_is_no_time_for() {
    status_of 0 on_gpu --seconds 1 >"$work/table"
    same "the time for all steps, 1 s, is over" "$(reason machine)"
    same "the time for all steps, 1 s, is over" "$(reason nccl)"
}
# Whatever ends it: here while a step waits that never ends by itself.
packs_when_it_is_ended() {
    local program=$moved/bin/stepwell-driver-conformance said checks
    mv "$program" "$safe/kept"
    mkfifo "$safe/began"
    # It names the process of the checks, which is the parent of timeout.
    cat >"$program" <<PROGRAM
#!/bin/sh
[ "\$1" = --list ] && exit
cut -d ' ' -f 4 /proc/\$PPID/stat >$safe/began
exec sleep 1000
PROGRAM
    chmod +x "$program"
    on_gpu --seconds 400 >"$work/table" 2>&1 &
    read -r said <"$safe/began"
    kill -TERM "$said"
    checks=0
    wait $! || checks=$?
    mv "$safe/kept" "$program"
    cat "$work/table"
    same 1 "$checks"
    same passed "$(verdict probe)"
    grep -q '"ended": "SIGTERM"' "$safe/results/summary.json"
    packed conformance.log
}
# With a stand-in for PyTorch, and the double must see nothing that is out of order.
steps_beside_pytorch() {
    on_double STW_CUDA_DOUBLE=delay_us=200,exit=9 \
        PYTHONPATH="$moved/python:$source/tests/packaging/stand_in:$source/tests/python" \
        python3 -B "$moved/torch_step.py" "$moved/modules/libstepwell-cuda.so"
}
collects_over_ranks() {
    on_double LD_LIBRARY_PATH="$safe/double:$safe/site/nvidia/nccl/lib" \
        STW_CUDA_DOUBLE=devices=4,exit=9 \
        "$moved/tests/ranks-nccl" "$moved/modules/libstepwell-nccl.so" --ranks 4
}
skips_ranks_without_nccl() {
    status_of 77 on_double "$moved/tests/ranks-nccl" "$moved/modules/libstepwell-nccl.so" \
        --ranks 1 >"$work/ranks"
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
    check "the check of PyTorch's models is in it" checks_models
    check "without a GPU it says in 20 lines what it would do and what is absent" plans_without_gpu
    check "it runs through, and measures all that can be" checks
    check "a step that fails is told, and the others go on" goes_on_after_a_failure
    check "nothing is probed in a context that is lost" probes_stop_in_a_lost_context
    check "nothing is measured on a device that is lost" stops_when_the_device_is_lost
    check "what there is no time for is named" names_what_there_is_no_time_for
    check "what it has is packed when it is ended" packs_when_it_is_ended
    check "the step beside PyTorch is right on a stand-in for it" steps_beside_pytorch
    check "four ranks collect over four devices" collects_over_ranks
    check "ranks without NCCL are a skip that says so" skips_ranks_without_nccl
    check "direct reads without cuFile are a skip that says so" skips_direct_reads_without_cufile
    check "a module that others may write is refused with what to do" refuses_what_others_may_write
fi
done_testing
