# SPDX-License-Identifier: Apache-2.0
"""Several directories: blocks are striped over all that are named, each with a budget of its own,
so that drives work side by side. Name one per drive; without arguments two are made in the current
directory, on one drive, which shows the way and not the speed.

Shows: a list of nvme options, budgets that add up, measured bandwidth, a refusal that names the
path. Needs no NumPy. usage: directories.py [DIRECTORY...]
"""
import sys
import tempfile

import stepwell

MIB = 1 << 20
BYTES = 32 * MIB


def open_over(directories):
    # Each may have another budget.
    nvme = [stepwell.Nvme(directory, 48 * MIB) for directory in directories]
    return stepwell.Runtime(host_bytes=8 * MIB, nvme=nvme, block_bytes=stepwell.BLOCK_512K)


def round_trip(directories):
    with open_over(directories) as runtime:
        budget = runtime.tier_stats("nvme").budget_bytes
        print(f"{len(directories)} directories, {budget / MIB:.1f} MiB together")
        tensor = runtime.create("t", BYTES, "u8")
        tensor.fill(5)
        tensor.evict("host")  # all of it to the drives
        right = bytes(tensor.read(bytearray(BYTES))).count(5)
        for name, link in (("written", "host_to_nvme"), ("read", "nvme_to_host")):
            stats = runtime.link_stats(link)
            print(f"  {name:7} {stats.bytes / MIB:6.1f} MiB, "
                  f"{stats.measured_bytes_per_s / 1e6:.0f} MB/s over all drives")
        print(BYTES - right, "bytes are wrong")
        return right == BYTES


def refuses_a_missing_one():
    """All of them, or none: nothing is half open, and the sentence names the one."""
    try:
        open_over([".", "no/such/directory"])
    except stepwell.NotFoundError as error:
        print("refused:", error)
        return True
    return False


def main(directories):
    if directories:
        good = round_trip(directories)
    else:
        with tempfile.TemporaryDirectory(dir=".") as one:
            with tempfile.TemporaryDirectory(dir=".") as two:
                good = round_trip([one, two])
    return 0 if good and refuses_a_missing_one() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
