# SPDX-License-Identifier: Apache-2.0
"""The demo over several ranks: the same training, by processes that hold a part of it each."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from statistics import median

MIB = 1 << 20
# Of each rank, and of the one it is compared with.
DEVICE_BYTES = 48 * MIB
HOST_BYTES = 16 * MIB
BLOCK_BYTES = 512 << 10
# Of the device, for gathered tensors: those that are used and the next. More would hold layers that
# are gone before they are used again, and leave shards and states less.
WHOLE_BYTES = 12 * MIB
JOB_SECONDS = 1800
# Adding up over ranks rounds a gradient once more for each rank, in each step: by at most 2^-24.
ROUNDING = 2.0**-24


def within_rounding(ranks, alone, together):
    """Compare losses, step by step; whether all differ by no more than rounding."""
    good = len(alone) == len(together) > 0
    for step, (one, all_ranks) in enumerate(zip(alone, together), start=1):
        difference = abs(float.fromhex(all_ranks) / float.fromhex(one) - 1.0)
        bound = step * ranks * ROUNDING
        good = good and difference <= bound
        print(
            f"step {step:3}: loss {float.fromhex(one):.6f} on one rank, "
            f"{float.fromhex(all_ranks):.6f} on {ranks}: differs by {difference:.1e}, "
            f"bound {bound:.1e}{'' if difference <= bound else '  TOO MUCH'}"
        )
    print(f"losses within rounding: {'yes' if good else 'no'} ({len(alone)} steps compared)")
    return good


def mpirun(ranks, folder):
    """The command's beginning. Open MPI never ends a job that hangs, so a timeout does."""
    return [
        "timeout", "--kill-after=10", str(JOB_SECONDS),
        "mpirun", "--oversubscribe", "-np", str(ranks),
        "-x", f"TMPDIR={folder}",
    ]  # fmt: skip


def environment():
    """More ranks than cores, root, and containers where no process reads another's memory."""
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_btl": "self,vader",
        "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "OMPI_MCA_plm_rsh_agent": "/bin/false",
    }


def missing(options):
    """"" or why this machine cannot run several ranks."""
    if not (options.build / "examples/train_gpt/train_gpt_mpi").exists():
        return "train_gpt_mpi is not built, which needs libopenmpi-dev; install it, then run again"
    if shutil.which("mpirun") is None:
        return "there is no mpirun; install openmpi-bin"
    return ""


def train(options, folder, name, begin, arguments):
    """Run a trainer, its output to the terminal; (status, losses)."""
    losses = folder / f"{name}.losses"
    command = [
        *begin,
        f"--steps={options.steps}",
        f"--stop-after={options.compare}",
        f"--seed={options.seed}",
        f"--batch={options.batch}",
        f"--nvme={options.nvme}",
        f"--device-bytes={options.device_bytes or DEVICE_BYTES}",
        f"--host-bytes={options.host_bytes or HOST_BYTES}",
        f"--block-bytes={BLOCK_BYTES}",
        f"--losses={losses}",
        f"--json={folder / name}.json",
        f"--report={folder / name}-run.json",
        *arguments,
    ]
    if options.text:
        command.append(f"--text={options.text}")
    status = subprocess.run(command, env=environment(), check=False).returncode
    return status, losses.read_text().split() if status == 0 else []


def nvme_bytes(report):
    """Of a step, both ways."""
    links = ("nvme>host", "nvme>device", "host>nvme", "device>nvme")
    return sum(report["links"][link]["bytes_per_step"] for link in links)


def row(name, report):
    """A line of the table: what lies where, and what a step moves, in MiB."""
    links = {link: of["bytes_per_step"] / MIB for link, of in report["links"].items()}
    peaks = [report["tiers"][tier]["peak_bytes"] / MIB for tier in ("device", "host", "nvme")]
    read = links["nvme>host"] + links["nvme>device"]
    written = links["host>nvme"] + links["device>nvme"]
    near = links["host>device"] + links["device>host"]
    figures = [report["own_state_bytes"] / MIB, *peaks, read, written, near, links["ranks"]]
    return f"{name:10}{report['step_seconds'] * 1e3:9.0f}" + "".join(f"{f:10.1f}" for f in figures)


def print_table(alone, ranks):
    print(
        f"\n{'':19}{'MiB':>10}{'peak MiB':>30}{'MiB a step':>40}\n"
        f"{'':10}{'step ms':>9}{'states':>10}{'device':>10}{'host':>10}{'nvme':>10}"
        f"{'nvme read':>10}{'written':>10}{'host-dev.':>10}{'ranks':>10}"
    )
    print(row("one rank", alone))
    for report in ranks:
        print(row(f"rank {report['rank']}", report))


def demo(options, folder, say):
    """Both runs and what they have in common; (whether all is well, report of rank 0)."""
    options.batch = max(4, options.ranks)
    options.batch += -options.batch % options.ranks
    programs = options.build / "examples/train_gpt"
    cores = len(os.sched_getaffinity(0))
    say(f"1/3 one rank, states on the drive, {options.compare} steps")
    status, alone = train(
        options, folder, "alone", [programs / "train_gpt"], [f"--threads={min(8, cores)}"]
    )
    if status != 0:
        return False, None
    say(f"2/3 the same training on {options.ranks} ranks, each with budgets as large")
    with tempfile.TemporaryDirectory(prefix="stepwell-ranks-") as short:
        # A build directory may be one that others write to; a module is not loaded from there.
        module = Path(shutil.copy(options.build / "drivers/mpi/libstepwell-mpi.so", short))
        module.chmod(0o644)
        device_bytes = options.device_bytes or DEVICE_BYTES
        begin = [*mpirun(options.ranks, short), programs / "train_gpt_mpi"]
        status, together = train(
            options, folder, "ranks", begin,
            [
                "--ranks",
                f"--mpi-module={module}",
                f"--threads={max(1, cores // options.ranks)}",
                f"--whole-bytes={min(WHOLE_BYTES, device_bytes // 2)}",
            ],
        )  # fmt: skip
    if status != 0:
        return False, None
    say("3/3 the comparison")
    good = within_rounding(options.ranks, alone, together)
    names = ["ranks.json"] + [f"ranks.json.rank{rank}" for rank in range(1, options.ranks)]
    reports = [json.loads((folder / name).read_text()) for name in names]
    one = json.loads((folder / "alone.json").read_text())
    print_table(one, reports)
    most = max(report["own_state_bytes"] for report in reports)
    part = most * options.ranks / one["own_state_bytes"]
    moved = median(map(nvme_bytes, reports)) * options.ranks / nvme_bytes(one)
    # Vectors lie on every rank, and shards are padded.
    divided = part <= 1.05
    print(f"\nstates of a rank: {part:.3f} of 1/{options.ranks}: {'yes' if divided else 'NO'}")
    print(f"bytes of a rank to and from nvme in a step: {moved:.2f} of 1/{options.ranks}")
    return good and divided, folder / "ranks-run.json"
