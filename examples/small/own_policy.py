# SPDX-License-Identifier: Apache-2.0
"""A policy of one's own in Python: twelve tensors are read in turn through a device that holds
eight. By recency each one has left when its turn comes again; the policy keeps the parameters.

usage: own_policy.py [DIRECTORY]
"""
import os
import sys

import stepwell
from stepwell import Role

TENSORS, KEPT, FLOATS, ROUNDS = 12, 6, 1 << 17, 10  # of 2^17 floats: one block
MIB = 1 << 20


def keep_parameters(tier, device, victims):
    """Called on a thread of the library. Lower is evicted first, 0: the default order."""
    return [1.0 if victim.role == Role.PARAM else 0.0 for victim in victims]


def read_in_turn(runtime, tensors, rounds):
    """How much of it came from the disk."""
    before = runtime.link_stats("nvme_to_device").bytes
    for _ in range(rounds):
        for tensor in tensors:
            with tensor.fetch():
                pass
    return runtime.link_stats("nvme_to_device").bytes - before


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else "."
    with stepwell.Runtime(devices=4 * MIB, nvme=stepwell.Nvme(directory, 32 * MIB),
                          block_bytes=stepwell.BLOCK_512K) as runtime:
        tensors = []
        for number in range(TENSORS):
            role = "param" if number < KEPT else "other"
            tensors.append(runtime.create(None, FLOATS, "f32", role=role))
            tensors[-1].fill(number)
        read_in_turn(runtime, tensors, 1)
        by_recency = read_in_turn(runtime, tensors, ROUNDS)

        runtime.set_victim_policy(keep_parameters)
        while runtime.tier_stats("device").policy_calls == 0:  # to compare figures; else no need
            os.sched_yield()
        read_in_turn(runtime, tensors, 1)
        by_policy = read_in_turn(runtime, tensors, ROUNDS)
        runtime.set_victim_policy(None)
    print(f"by recency {by_recency / MIB:.1f} MiB, by own policy {by_policy / MIB:.1f} MiB "
          "read from the disk")
    return 0 if by_policy < by_recency else 1


if __name__ == "__main__":
    sys.exit(main())
