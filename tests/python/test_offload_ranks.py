# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() over ranks: parameters that some do not use, and micro-batches.

Two processes, Gloo. Skipped where PyTorch is not installed.
"""
import importlib.util
import json
import os
import unittest

import stepwell
import support
from torch_ranks import run_ranks


def branches(layers=3):
    """Layers with parameters that not every rank uses in every step, and one that none uses."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.always = torch.nn.Parameter(torch.randn(256, 256) / 16)
            self.sometimes = torch.nn.Parameter(torch.randn(256, 256) / 16)  # sharded
            self.bias = torch.nn.Parameter(torch.randn(256) / 16)  # replicated
            self.never = torch.nn.Parameter(torch.randn(256))

        def forward(self, x, uses):
            more = (x @ self.sometimes + self.bias) if uses else 0
            return torch.tanh(x @ self.always + more)

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, x, uses):
            for layer, each in zip(self.layers, uses):
                x = layer(x, each)
            return x

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return Branches()


def uses_of(rank, step):
    """Both ranks, one of them, or neither, by layer and step."""
    return [(step + rank) % 2 == 0, step % 2 == 0, rank == 0]


def made_over(group, model, optimizer, **options):
    import stepwell.torch
    stepwell.torch.offload(
        model, optimizer, device_bytes=64 * support.BLOCK, block_bytes=support.BLOCK,
        thread_count=1, timeout=60, group=group, nvme=stepwell.Nvme(
            ".", (1 << 20) + 512 * support.BLOCK, driver_options="allow_tmpfs=1"), **options)
    return stepwell.torch.offloaded(model)


def optimizer_of(model, name):
    import torch
    return (torch.optim.AdamW(model.parameters(), 1e-3) if name == "AdamW"
            else torch.optim.RMSprop(model.parameters(), 1e-3, foreach=False))


def of_some_ranks(rank, size):
    """Losses of the mean, norms, and how often each parameter was updated; by optimizer.

    rank -1: in plain torch, where one process has all losses.
    """
    import torch
    import torch.distributed as distributed
    found = {}
    group = stepwell.Group.from_torch(timeout=60) if rank >= 0 else None
    for name in ("AdamW", "RMSprop"):
        model = branches()
        optimizer = optimizer_of(model, name)
        made = None
        if rank >= 0:
            made = made_over(group, model, optimizer, find_unused_parameters=True)
        values = []
        for step in range(6):
            torch.manual_seed(step)
            parts = torch.randn(8, 256).chunk(size)
            losses = [model(parts[at], uses_of(at, step)).square().mean()
                      for at in ([rank] if rank >= 0 else range(size))]
            sum(losses).div(1 if rank >= 0 else size).backward()
            if step >= 3:  # who asks for gradients has the sums
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-2).item()
                values.append(norm)
            optimizer.step()
            optimizer.zero_grad()
            mean = sum(losses).detach().clone()
            if rank >= 0:
                distributed.all_reduce(mean)
            values.append(mean.item() / size)
        counts = {int(at): int(state["step"])
                  for at, state in optimizer.state_dict()["state"].items()}
        found[name] = values, sorted(counts.items())
        if made is not None:
            made.close()
    if group is not None:
        group.destroy()
    return found


def resumed_from_one_file(rank, size):
    """Weights of 16 bits that go on training, and of a run that loads what rank 0 saved."""
    import torch
    group = stepwell.Group.from_torch(timeout=60)

    def made():
        torch.manual_seed(0)
        model = torch.nn.Sequential(  # divided, and on every rank
            torch.nn.Linear(256, 200), torch.nn.Linear(200, 1)).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        return model, optimizer, made_over(group, model, optimizer)

    def trained(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(step * size + rank)
            model(torch.randn(8, 256).bfloat16()).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [each.double().sum().item() for each in model.state_dict().values()]

    torch.set_num_threads(1)
    model, optimizer, tiers = made()
    trained(model, optimizer, range(4))
    if rank == 1:  # as one of nine ranks that has no part of a small matrix
        kernel, without = optimizer._stepwell.kernel, model[0].weight._stepwell.tensor
        counted = kernel.count
        kernel.count = lambda tensor: 0 if tensor is without else counted(tensor)
    kept, states = model.state_dict(), optimizer.state_dict()
    masters = [state["master_param"] for state in states["state"].values()]
    near = all(torch.equal(master.bfloat16(), weight)
               for master, weight in zip(masters, kept.values()))
    finer = sum(int((master != master.bfloat16()).sum()) for master in masters)
    if rank == 0:  # alone, as programs do
        torch.save((kept, states), "saved.pt")
    stepwell.torch.save_safetensors(model, f"of{rank}.safetensors", masters=True)
    with open(f"of{rank}.safetensors", "rb") as file:
        in_file = masters[0].numpy().tobytes() in file.read()
    os.unlink(f"of{rank}.safetensors")
    torch.distributed.barrier()
    steps = [state["step"].item() for state in states["state"].values()]
    if rank == 1:
        del kernel.count
    found = [near, in_file, steps, finer, trained(model, optimizer, range(4, 8))]
    tiers.close()
    model, optimizer, tiers = made()
    kept, states = torch.load("saved.pt", weights_only=True)
    torch.distributed.barrier()
    if rank == 0:
        os.unlink("saved.pt")
    model.load_state_dict(kept)
    optimizer.load_state_dict(states)
    found.append(trained(model, optimizer, range(4, 8)))
    tiers.close()
    group.destroy()
    return found


def in_little_room(rank, size):
    """Units that ranks would hold for different times, where gathered ones leave for others."""
    import random

    import torch
    model = branches(10)
    for layer in model.layers:
        layer.never.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    group = stepwell.Group.from_torch(timeout=60)
    made = made_over(group, model, optimizer, find_unused_parameters=True,
                     whole_bytes=17 * support.BLOCK)  # two layers
    chance = random.Random(rank)
    for _ in range(4):
        model(torch.randn(2, 256), [chance.random() < 0.5 for _ in range(10)]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    made.close()
    group.destroy()
    return "done"


def micro_batches(rank, size):
    """Losses, and bytes between ranks: each pass summed, all together, and updated in backward.

    The last layer's `sometimes` is used by the first micro-batch alone.
    """
    import contextlib

    import torch
    import torch.distributed as distributed
    found = []
    group = stepwell.Group.from_torch(timeout=60) if rank >= 0 else None
    for together, early in ((False, False), (True, False), (False, True)):
        model = branches()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        made, moved = None, 0
        if rank >= 0:
            made = made_over(group, model, optimizer, update_in_backward=early)
            moved = -made.runtime.link_stats("ranks").bytes  # the group's, whatever runtime
        losses = []
        for step in range(4):
            torch.manual_seed(step)
            total = 0.0
            parts = torch.randn(16, 256).chunk(size)
            for at in range(1 if early else 4):
                local = made is not None and together and at < 3
                with made.no_sync() if local else contextlib.nullcontext():
                    loss = sum(model(parts[each].chunk(4)[at], [True, True, at == 0])
                               .square().mean() for each in ([rank] if rank >= 0 else range(size)))
                    loss.div(4 if rank >= 0 else 4 * size).backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            if rank >= 0:
                distributed.all_reduce(total)
            losses.append(total.item())
        if made is not None:
            made.runtime.drain()
            moved += made.runtime.link_stats("ranks").bytes
            made.close()
        found.append((losses, moved))
    if group is not None:
        group.destroy()
    return found


def of_one_rank_by_mistake(rank, size):
    """The error on each rank if only one of them has a gradient of a parameter."""
    import torch
    model = branches()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    group = stepwell.Group.from_torch(timeout=60)
    made_over(group, model, optimizer)
    said = ""
    try:
        for _ in range(2):
            model(torch.ones(1, 256), [True, rank == 0, True]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    except stepwell.OrderError as error:
        said = str(error)
    print(json.dumps(said), flush=True)
    os._exit(0)


@unittest.skipIf(importlib.util.find_spec("torch") is None,
                 "PyTorch is not installed (./dev setup --torch)")
class Ranks(unittest.TestCase):
    def results(self, claim):
        found = []
        for status, out, errors in run_ranks(claim, module="test_offload_ranks"):
            self.assertEqual(status, 0, errors)
            found.append(json.loads(out))
        return found

    def close_to(self, ours, theirs):
        self.assertEqual(len(ours), len(theirs))
        for one, other in zip(ours, theirs):
            self.assertAlmostEqual(one, other, delta=2e-6 * abs(other))

    def test_parameters_of_some_ranks_are_updated_as_by_one_process(self):
        alone = of_some_ranks(-1, 2)
        for together in self.results("of_some_ranks"):
            for name, (values, counts) in alone.items():
                self.close_to(together[name][0], values)
                self.assertEqual([tuple(each) for each in together[name][1]], counts)
                # Of the layers: always, and in each step, where a step had them, where one rank
                # had; `never` in none.
                self.assertEqual([count for _, count in counts], [6, 6, 6, 6, 3, 3, 6, 6, 6])

    def test_what_one_rank_has_saved_goes_on_with_the_masters_of_all(self):
        first, second = self.results("resumed_from_one_file")
        self.assertEqual(first, second)
        near, in_file, steps, finer, going_on, resumed = first
        self.assertEqual(steps, [4.0] * 4)
        self.assertTrue(near and in_file)
        self.assertGreater(finer, 10000)  # of 51,600
        self.assertEqual(resumed, going_on)

    def test_ranks_that_use_different_parameters_gather_alike(self):
        self.assertEqual(self.results("in_little_room"), ["done", "done"])

    def test_micro_batches_are_summed_once_over_ranks(self):
        alone = micro_batches(-1, 2)
        for (each, each_moved), (once, once_moved), (early, _) in self.results("micro_batches"):
            self.close_to(each, alone[0][0])
            self.close_to(once, alone[1][0])
            self.close_to(early, alone[2][0])
            # Three of four sums of five matrices are saved, in each of four steps; how much is
            # gathered ahead at the end differs by a few matrices.
            self.assertLess(once_moved, each_moved - 4 * 3 * 4 * 256 * 256 * 4 // 2)

    def test_a_gradient_of_one_rank_alone_is_an_error_by_name(self):
        for said in self.results("of_one_rank_by_mistake"):
            self.assertRegex(said, r"'layers.1.(sometimes|bias).grad'")


if __name__ == "__main__":
    support.main()
