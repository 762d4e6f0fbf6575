# SPDX-License-Identifier: Apache-2.0
"""Several threads: four of them take twelve tensors of 2 MiB from a list, on a device that holds
two at a time, and count what they did in a tensor that all of them write.

Shows: waiting for the room that other threads' views take, many readers or one writer; calls of the
library do not hold Python's lock. Needs no NumPy. usage: threads.py [DIRECTORY]
"""
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import stepwell

MIB = 1 << 20
THREADS, TENSORS, BYTES = 4, 12, 2 * MIB


def work(runtime, tensor, counter):
    """What a thread does with each tensor it takes."""
    # Without wait_room, a fetch whose room the others' views take is refused at once. The view ends
    # before the next fetch: who holds nothing while waiting is in nobody's way.
    with runtime.fetch(tensor, wait_room=True) as view:
        result = zlib.crc32(view.bytes)
    # A writer is alone: the fetches of the other threads wait for its end.
    with runtime.fetch(counter, "read_write", wait_room=True) as view:
        view.bytes[0] += 1
    return result


def main(directory):
    with stepwell.Runtime(devices=5 * MIB, host_bytes=4 * MIB,
                          nvme=stepwell.Nvme(directory, 64 * MIB),
                          block_bytes=stepwell.BLOCK_512K) as runtime:
        tensors = [runtime.create(None, BYTES, "u8") for _ in range(TENSORS)]
        for number, tensor in enumerate(tensors):
            tensor.fill(number)
        counter = runtime.create("counter", 1, "u8", zero=True)
        # An exception of a thread is raised where its result is asked for.
        with ThreadPoolExecutor(THREADS) as pool:
            results = list(pool.map(lambda tensor: work(runtime, tensor, counter), tensors))
        counted = counter.read(bytearray(1))[0]
    expected = [zlib.crc32(bytes([number]) * BYTES) for number in range(TENSORS)]
    print(f"{counted} tensors counted by {THREADS} threads; the checksums are",
          "right" if results == expected else "wrong")
    return 0 if counted == TENSORS and results == expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "."))
