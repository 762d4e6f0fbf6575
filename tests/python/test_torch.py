# SPDX-License-Identifier: Apache-2.0
"""Groups over torch.distributed: two processes, Gloo. Skipped where PyTorch is not installed."""
import importlib.util
import json
import os
import tempfile
import threading
import unittest
from array import array

import stepwell
import support
from torch_ranks import run_ranks

SIZE = 20001


def open_on(group):
    return stepwell.Runtime(host_bytes=64 * support.BLOCK, block_bytes=support.BLOCK,
                            thread_count=1, timeout=60, group=group)


def numbers(count, salt=0):
    return array("f", [float((at * 7 + salt) % 1021) for at in range(count)])


def train(runtime, rank, ranks):
    """Four micro-batches of whole numbers a step, so that their sums are exact in any order."""
    weights = runtime.create("w", SIZE, "f32", role="param", partition="sharded")
    gradient = runtime.create("g", SIZE, "f32", role="grad", partition="sharded")
    weights.write(numbers(SIZE))
    optimizer = runtime.adamw(stepwell.Hyper(lr=0.01))
    optimizer.add(weights, gradient)
    norms = []
    for _ in range(2):
        for batch in range(rank, 4, ranks):
            gradient.reduce(numbers(SIZE, batch), more=batch + ranks < 4)
        norms.append(optimizer.step(clip_norm=1.0).norm)
    out = bytearray(4 * SIZE)
    weights.read(out)
    return norms, out.hex()


def trained(rank, size):
    with stepwell.Group.from_torch(timeout=60) as group, open_on(group) as runtime:
        assert (group.rank, group.size) == (rank, size)
        return train(runtime, rank, size)


def summed(rank, size):
    """The sums of tensors of each dtype; of the rounding of the 16 bit ones too."""
    import torch
    found = {}
    kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    with stepwell.Group.from_torch(timeout=60) as group, open_on(group) as runtime:
        for name, kind in kinds.items():
            for partition in ("sharded", "replicated"):
                tensor = runtime.create(f"{name}-{partition}", 1001, name, role="grad",
                                        partition=partition)
                with tensor.fetch("reduce") as view:
                    torch.frombuffer(view.bytes, dtype=kind).fill_(1.0 if rank == 0 else 0.00389)
                whole = torch.empty(1001, dtype=kind)
                if partition == "sharded":
                    with tensor.fetch() as view:
                        whole.copy_(torch.from_dlpack(view))
                else:
                    whole.copy_(torch.frombuffer(tensor.read(bytearray(whole.nbytes)), dtype=kind))
                right = (torch.ones((), dtype=kind).float()
                         + torch.tensor(0.00389).to(kind).float()).to(kind)
                found[tensor.name] = bool((whole == right).all())
    return found


def beside_the_programs_own(rank, size):
    """The program's collectives, in a process group of its own or another, do not meet ours."""
    import torch
    import torch.distributed as distributed
    part = distributed.new_group(list(range(size)))
    with stepwell.Group.from_torch(part, timeout=60) as group, open_on(group) as runtime:
        tensor = runtime.create("w", SIZE, partition="sharded")
        tensor.fill(1.0)
        for _ in range(20):
            operation = runtime.fetch_async(tensor)
            mine = torch.full((1000,), float(rank + 1))
            distributed.all_reduce(mine)
            distributed.all_reduce(mine, group=part)
            assert mine[0] == 2 * (size * (size + 1) // 2), mine[0]
            operation.wait()
            operation.collect().release()
            tensor.fill(1.0)
    return "done"


def alone_on_its_thread(rank, size):
    """Threads that sums start on a thread of the library, and those of torch in the program's."""
    import torch
    from stepwell._torch import Engine
    torch.set_num_threads(2)
    engine = Engine(None, 60)
    started = []

    def work():
        # What a thread starts has its name; Gloo's threads have others.
        with open("/proc/thread-self/comm", "w") as comm:
            comm.write("sums")
        for count in (1000, 1 << 18):
            memory = array("f", [rank + 1.0]) * count
            under_way = engine.all_reduce(memoryview(memory).cast("B"), stepwell.Dtype.F32)
            while not engine.poll(under_way):
                pass
            started.append(support.threads_named("sums") - 1)
            assert memory[0] == memory[-1] == size * (size + 1) / 2

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return started, torch.get_num_threads()


def offloaded(rank, size):
    """A model in tiers on all ranks, each with its part of every batch: mean losses, bytes."""
    import torch
    import torch.distributed as distributed

    import stepwell.torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(6)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    group = stepwell.Group.from_torch(timeout=60) if size > 1 else None
    stepwell.torch.offload(
        model, optimizer, device_bytes=24 * support.BLOCK, block_bytes=support.BLOCK,
        thread_count=1, timeout=60, group=group, nvme=stepwell.Nvme(
            ".", (1 << 20) + 512 * support.BLOCK, driver_options="allow_tmpfs=1"))
    losses = []
    for step in range(4):
        torch.manual_seed(step)
        batch = torch.randn(8, 256).chunk(size)[rank]
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if size > 1:
            distributed.all_reduce(mean)
        losses.append(mean.item() / size)
    made = stepwell.torch.offloaded(model)
    made.runtime.drain()
    held = sum(record.tensor.info().shard_bytes for record in made.records)
    weights = made.records[0].tensor
    with weights.fetch() as view:
        same = view.address == made.records[0].address
    made.close()
    if group is not None:
        group.destroy()
    return losses, held, same


def lost(rank, size):
    """The last rank leaves, as if it were killed; the others are told what Gloo said."""
    group = stepwell.Group.from_torch(timeout=60)
    runtime = open_on(group)
    tensor = runtime.create("w", SIZE, partition="sharded")
    tensor.fill(1.0)
    if rank == size - 1:
        os._exit(0)
    try:
        tensor.fetch()
        said = "nothing"
    except stepwell.PeerError:
        said = type(group.failure).__name__
    print(json.dumps(said), flush=True)
    os._exit(0)


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch is not installed")
class Torch(unittest.TestCase):
    def results(self, claim):
        found = []
        for status, out, errors in run_ranks(claim):
            self.assertEqual(status, 0, errors)
            found.append(json.loads(out) if out else None)
        return found

    def test_training_has_the_bits_of_one_rank(self):
        with open_on(None) as runtime:
            alone = json.loads(json.dumps(train(runtime, 0, 1)))
        for together in self.results("trained"):
            self.assertEqual(together[0], alone[0])
            self.assertTrue(together[1] == alone[1])

    def test_offloaded_models_have_the_losses_of_one_rank_and_half_the_bytes(self):
        with tempfile.TemporaryDirectory(prefix="stepwell-torch-", dir=".") as directory:
            here = os.getcwd()
            os.chdir(directory)
            try:
                alone, bytes_alone, same = offloaded(0, 1)
            finally:
                os.chdir(here)
        self.assertTrue(same)
        for losses, held, same in self.results("offloaded"):
            for ours, theirs in zip(losses, alone):
                self.assertAlmostEqual(ours, theirs, delta=1e-6 * theirs)
            self.assertLess(held, 0.55 * bytes_alone)
            self.assertTrue(same)

    def test_sums_are_rounded_once(self):
        for found in self.results("summed"):
            self.assertEqual(len(found), 6)
            self.assertEqual([name for name, right in found.items() if not right], [])

    def test_collectives_of_the_program_do_not_meet_those_of_the_group(self):
        self.assertEqual(self.results("beside_the_programs_own"), ["done", "done"])

    def test_sums_start_no_threads_beside_those_of_the_program(self):
        self.assertEqual(self.results("alone_on_its_thread"), [[[0, 0], 2], [[0, 0], 2]])

    def test_a_rank_that_is_gone_is_an_error_of_the_others(self):
        self.assertEqual(self.results("lost"), ["RuntimeError", None])


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch is not installed")
class NotSetUp(unittest.TestCase):
    def test_without_a_process_group_there_is_a_sentence(self):
        with self.assertRaisesRegex(stepwell.InvalidError, "init_process_group"):
            stepwell.Group.from_torch()


if __name__ == "__main__":
    support.main()
