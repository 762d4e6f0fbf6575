# SPDX-License-Identifier: Apache-2.0
"""The cases of bench/torch_gpu_check.py, which starts this once for each."""
import contextlib
import hashlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
import traceback
import types

import torch
import torch.nn.functional as F
from torch import nn
from torch_bench import Gpt
from torch_gpu_check import SKIPPED, write
from torch_gpu_runs import (
    BF16, F32, GB, GIB, MACHINE, MIB, NO_DRIVE, OPEN, OPTIONS, Run, Skip, absent, compared, digits,
    drive, drive_rate, equal_layers, gpt, in_turn, left, link_rates, llama, lora, made, median_of,
    module, near, room_of, say, sized, update_rates, words,
)


# -- the machine ----------------------------------------------------------------------------------


def case_machine():
    """What figures depend on."""
    if OPTIONS.device == "cuda":
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,pcie.link.gen.current,"
             "pcie.link.width.current", "--format=csv,noheader"], capture_output=True, text=True,
            check=True).stdout.strip()
        say("machine.device", torch.cuda.mem_get_info()[1] / GIB, "GiB", text=text)
    pages = os.sysconf("SC_PAGE_SIZE") / GIB
    say("machine.host", os.sysconf("SC_PHYS_PAGES") * pages, "GiB", kernel=platform.release(),
        available=digits(os.sysconf("SC_AVPHYS_PAGES") * pages))
    say("machine.cores", len(os.sched_getaffinity(0)), "cores")
    if OPTIONS.nvme is None:
        absent("machine.drive", NO_DRIVE)
        return
    say("machine.drive", shutil.disk_usage(drive()).free / GIB, "GiB free")


def case_bounds():
    """What nothing can be faster than."""
    width = sized(8192, 128)
    one, two = (torch.randn(width, width, device=OPTIONS.device, dtype=BF16) for _ in range(2))
    say("bounds.matmul", 2 * width ** 3 / median_of(lambda: one @ two) / 1e12, "TFLOP/s of bf16")
    for way, rate in link_rates().items():
        say(f"bounds.{way}", rate / GB, "GB/s, each way" if way == "both" else "GB/s")
    ours, theirs = update_rates()
    say("bounds.update", statistics.median(ours) / GB, "G parameters/s, fp32",
        "torch.optim.AdamW(fused=True) on the same cores", statistics.median(theirs) / GB,
        [our / their for our, their in zip(ours, theirs)])
    if OPTIONS.nvme is None:
        absent("bounds.drive", NO_DRIVE)
        return
    for name, ways in ("read", "r"), ("write", "w"), ("read_write", "rw"):
        say(f"bounds.drive_{name}", drive_rate(ways) / GB, "GB/s")


# -- bits -----------------------------------------------------------------------------------------

BUDGETS = {
    "quarter": {"share": 0.25}, "eighth": {"share": 0.125},
    "nvme": {"share": 0.25, "host": 0.25, "nvme": True},
    "in_backward": {"share": 0.25, "update_in_backward": True},
}
# What a loop does, and the budgets in which it runs.
LOOPS = {"": ({}, BUDGETS), ".clip": ({"clip": 0.5}, ["eighth"]),
         ".micro": ({"micro": 2}, ["eighth"])}


def case_bits():
    """Losses and parameters do not depend on budgets, and losses are near plain PyTorch's."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    width, vocabulary, length = sized((256, 1024, 128), (64, 128, 16))
    shape = sized(3, 2), width, 3 * width, 4, 2, vocabulary
    kinds = {"gpt": (lambda: Gpt(shape[0], width, vocabulary, length), F32),
             "llama": (lambda: llama(*shape, checkpoints=False), F32),
             "llama_bf16": (lambda: llama(*shape, checkpoints=False), BF16),
             "checkpointed": (lambda: llama(*shape), F32),
             "lora": (lambda: lora(*shape), F32)}
    ids, different = words(4, length, vocabulary), []

    def trained(make, dtype, **options):
        """The losses, a digest of the parameters, and what was moved."""
        one, moved = Run(make, ids, dtype, **options), None
        for _ in range(6):
            one.step()
        losses = [loss.item() for loss in one.losses]
        if one.tiers is not None:
            moved = one.totals()
            one.tiers.close()
            OPEN.remove(one)
        digest = hashlib.sha256()
        for parameter in one.model.parameters():
            digest.update(parameter.detach().cpu().view(torch.uint8).numpy().tobytes())
        return losses, digest.digest(), moved

    def compare(kind, what, loop, budgets):
        make, dtype = kinds[kind]
        plain, every = (trained(make, dtype, share=share, **loop) for share in (None, 1.3))
        far = max(abs(one - two) / two for one, two in zip(every[0], plain[0]))
        say(f"{what}.near_plain", far, "of the loss", "plain PyTorch, 6 steps",
            most=2e-5 if dtype == F32 else None)  # plain bf16 has no masters in fp32
        for name in budgets:
            if name == "nvme" and OPTIONS.nvme is None:
                absent(f"{what}.nvme", NO_DRIVE)
                continue
            found = trained(make, dtype, **BUDGETS[name], **loop)
            same = found[:2] == every[:2]
            say(f"{what}.{name}", same, "equal", "all on the device", goal=True, moved=found[2])
            different.extend([f"{what}.{name}"] * (not same))

    for kind in sized(kinds, ("gpt", "llama_bf16", "lora")):
        try:
            for name, (loop, budgets) in LOOPS.items():
                compare(kind, f"bits.{kind}{name}", loop, budgets)
        except Skip as reason:
            absent(f"bits.{kind}", str(reason))
    if different:
        raise AssertionError(f"budgets change the bits of {', '.join(different)}")


# -- costs of the package -------------------------------------------------------------------------


class Timed(Run):
    """Its losses are the host's times of the parts of a step."""

    def step(self):
        clock = [time.perf_counter()]
        loss = self.model(self.ids).float().sum()
        for part in (loss.backward, self.optimizer.step, self.optimizer.zero_grad):
            clock.append(time.perf_counter())
            part()
        clock.append(time.perf_counter())
        near().synchronize()
        self.losses.append([end - begin for begin, end in zip(clock, clock[1:])])


def case_hooks():
    """The host's time of a unit beyond plain PyTorch's, everything on the device."""
    layers, width = sized((64, 1024), (16, 64))  # each layer is a unit

    def stack():
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    x = torch.randn(16, width, device=OPTIONS.device)
    plain, ours = Timed(stack, x, F32), Timed(stack, x, F32, share=1.3)
    in_turn({"plain": plain, "ours": ours}, sized(30, 5), each=1)
    units, turns = ours.tiers.units, 100
    more = [[1e6 * (our - their) / len(units) for our, their in zip(*both)]
            for both in zip(ours.losses[3:], plain.losses[3:])]
    for name, values in zip(("forward", "backward", "step", "zero_grad"), zip(*more)):
        say(f"hooks.{name}", statistics.median(values), "us a unit")
    say("hooks.unit", statistics.median(map(sum, more)), "us a unit", most=60, units=len(units))

    def enter_and_leave():
        for _ in range(turns):
            for unit in units:
                unit.enter()
                unit.leave()
    say("hooks.enter_leave", 1e6 * median_of(enter_and_leave) / turns / len(units), "us a unit")


def case_remap():
    """What it takes to map blocks at the fixed addresses of parameters."""
    ours = equal_layers(0.05)
    in_turn({"ours": ours}, 1)
    found = ours.moves(3)
    say("remap.bytes", found["remapped"] / max(1, found["up"]), "of the bytes moved up", **found)
    say("remap.time", found["remapped_ns"] / max(1, found["busy_ns"]), "of the copies' time up")


def case_resident_bytes():
    """What a step of a model that fits moves over the bus."""
    ours = equal_layers(1.3)
    in_turn({"ours": ours}, 1)
    found = ours.moves(3)
    say("resident_bytes", found["up"] + found["down"], "bytes a step", most=0)


def case_torch_memory():
    """torch's memory beside the budget in autocast, which casts each weight."""
    if OPTIONS.device == "cpu":
        raise Skip("PyTorch does not count memory of the CPU")
    ours = equal_layers(0.1, F32, autocast=True)
    in_turn({"ours": ours}, 1)
    before = near().memory_allocated()
    near().reset_peak_memory_stats()
    ours.step()
    ours.end()
    peak = near().max_memory_allocated() - before
    say("torch_memory", peak / (2 * ours.parameters), "of a bf16 copy of all weights", most=0.25,
        peak_bytes=peak)


# -- speed ----------------------------------------------------------------------------------------


def case_gpt():
    """All on the device, and a quarter, beside plain PyTorch."""
    plain, every, quarter = gpt(), gpt(1.3), gpt(0.25)
    runs = {"plain": plain, "all": every, "quarter": quarter,
            "quarter_backward": gpt(0.25, update_in_backward=True),
            "plain_clip": plain.clipped(), "quarter_clip": quarter.clipped()}
    times = in_turn(runs)
    for name, base, goal in (("all", "plain", 0.97), ("quarter", "plain", 0.92),
                             ("quarter_backward", "plain", 0.95),
                             ("quarter_clip", "plain_clip", 0.92)):
        compared(f"gpt.{name}", times[name], times[base], "plain PyTorch, fused AdamW in bf16",
                 goal, runs[name], moves=runs[name].moves())


def of_drive(name, ours, goal, rounds):
    """Steps beside their bytes, read and written by the drive alone, in turn."""
    times, bounds = in_turn({"ours": ours}, 1)["ours"], []
    while True:
        moves = ours.moves()
        bounds.append((moves["read"] + moves["written"]) / drive_rate("rw"))
        if len(bounds) == rounds or left() < 5 * (times[-1] + bounds[-1]):
            break
        times += in_turn({"ours": ours}, 1, warm=0)["ours"]
    compared(name, times, bounds, "its bytes, read and written by the drive alone", goal, ours,
             moves=moves)


def case_gpt_nvme():
    """A quarter on the device, a quarter in the host's memory, half on the drive."""
    of_drive("gpt_nvme", gpt(0.25, host=0.25, nvme=True), 0.90, 3)


def case_lora():
    """Adapters of a frozen base in bf16, in steps of its size: the bus is the bound."""
    sizes, width, inner, heads, pairs, vocabulary = sized(
        ((8, 24, 64), 8192, 28672, 64, 8, 32000), ((2, 4), 64, 128, 4, 2, 128))
    spent = 0.0
    for layers in sizes:
        name, begin = f"lora.{layers}_layers", time.monotonic()
        if left() < 3 * spent:
            absent(name, f"{left():.0f} s are left, and the size before took {spent:.0f}")
            continue
        ours = Run(lambda: lora(layers, width, inner, heads, pairs, vocabulary),
                   words(1, sized(1024, 16), vocabulary), share=0.27, host=1.02)
        times = in_turn({"ours": ours}, 3, each=1, reserve=20)["ours"]
        moves = ours.moves()
        bound = moves["up"] / link_rates()["up"]
        compared(name, times, [bound] * len(times), "its bytes up, copied alone", 0.93, ours,
                 moves=moves)
        ours.close()
        del ours  # and its memory, before the next one
        spent = time.monotonic() - begin


def case_llama8b():
    """AdamW with masters of 8.03e9 parameters: 106 GiB, of which the device has room for 28."""
    shape, ids = sized(((32, 4096, 14336, 32, 8, 128256), (4, 4096, 128256)),
                       ((2, 64, 128, 4, 2, 128), (2, 16, 128)))
    ours = Run(lambda: llama(*shape), words(*ids),
               budgets=sized((28 * GIB, 108 * GIB), (256 * MIB, 256 * MIB)))
    plain = Run(lambda: llama(*shape), words(*ids), fused=True)
    times = in_turn({"ours": ours, "plain": plain}, 3, warm=2, reserve=30)
    moves, rates, updates = ours.moves(), link_rates(), next(iter(update_rates()))
    compared("llama8b", times["ours"], times["plain"], "plain PyTorch, fused AdamW in bf16", 0.85,
             ours, moves=moves)
    bounds = {"plain": statistics.median(times["plain"]), "up": moves["up"] / rates["both"],
              "down": moves["down"] / rates["both"],
              "update": ours.parameters / statistics.median(updates)}
    compared("llama8b.bound", times["ours"], [max(bounds.values())] * len(times["ours"]),
             f"the largest bound: {max(bounds, key=bounds.get)}", 0.92, bounds=bounds)


def case_largest():
    """Many parameters with AdamW and masters: the drive has them all, host and device 98 GiB."""
    shape, ids = sized(((50, 5120, 17920, 40, 8, 32000), (16, 2048, 32000)),
                       ((4, 64, 128, 4, 2, 128), (2, 16, 128)))
    with torch.device("meta"):
        room = room_of(llama(*shape).to(BF16))
    if (free := shutil.disk_usage(drive()).free) < 1.05 * room:
        raise Skip(f"the drive has {free / GIB:.0f} GiB free, and the model needs {room / GIB:.0f}")
    ours = Run(lambda: llama(*shape), words(*ids), nvme=True,
               budgets=sized((98 * GIB, 98 * GIB), (48 * MIB, 96 * MIB)))
    of_drive("largest.step", ours, None, 2)
    say("largest.parameters", ours.parameters, "parameters that trained", goal=17_000_000_000)


# -- peers ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def one_rank():
    import torch.distributed as dist
    dist.init_process_group("cpu:gloo,cuda:nccl" if OPTIONS.device == "cuda" else "gloo",
                            store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def beside(name, theirs, against):
    """A quarter of ours on the device and a peer, in turn."""
    ours = gpt(0.25)
    times = in_turn({"ours": ours, "theirs": theirs}, 4, warm=2)
    compared(f"peers.{name}", times["ours"], times["theirs"], against, 1.0, ours,
             loss=ours.losses[-1].item(), their_loss=theirs.losses[-1].item())


def case_fsdp2():
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    if OPTIONS.device == "late":
        raise Skip("FSDP2 does not know the device")
    with one_rank():
        theirs = gpt()
        theirs.model.cpu()
        policy = CPUOffloadPolicy(pin_memory=OPTIONS.device == "cuda")
        for part in (*theirs.model.blocks, theirs.model):
            fully_shard(part, offload_policy=policy)
        theirs.optimizer = torch.optim.AdamW(theirs.model.parameters(), 1e-4, fused=True)
        beside("fsdp2", theirs, "FSDP2 with CPUOffloadPolicy, states in bf16 without masters")


def case_torchao():
    optimizer = module("torchao.optim").CPUOffloadOptimizer
    theirs = gpt()
    theirs.optimizer = optimizer(theirs.model.parameters(), torch.optim.AdamW,
                                 offload_gradients=True, fused=True, lr=1e-4)
    beside("torchao", theirs, "torchao's CPUOffloadOptimizer, parameters on the device")


def case_deepspeed():
    deepspeed, host = module("deepspeed"), {"device": "cpu", "pin_memory": True}
    with one_rank():
        theirs = gpt()
        engine, *_ = deepspeed.initialize(
            model=theirs.model, model_parameters=theirs.model.parameters(), config={
                "train_micro_batch_size_per_gpu": len(theirs.ids), "bf16": {"enabled": True},
                "zero_optimization": {"stage": 3, "overlap_comm": True, "offload_param": host,
                                      "offload_optimizer": host},
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})

        def step():
            out = engine(theirs.ids[:, :-1]).flatten(0, 1).float()
            loss = F.cross_entropy(out, theirs.ids[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            theirs.losses.append(loss.detach())
        theirs.step = step
        beside("deepspeed", theirs, "DeepSpeed ZeRO-3, parameters and optimizer in host memory")


def case_accelerate():
    """A forward pass of a few tokens: accelerate does not train so."""
    accelerate = module("accelerate")
    shape = sized((32, 2048, 5632, 16, 4, 32000), (2, 64, 128, 4, 2, 128))
    ids = words(1, sized(64, 8), 128)

    def forward(model):
        def step():
            with torch.no_grad():
                model(ids)
        return types.SimpleNamespace(step=step, end=near().synchronize)
    theirs = made(lambda: llama(*shape, checkpoints=False), BF16).cpu().eval()
    accelerate.cpu_offload(theirs, torch.device(OPTIONS.device))
    ours = Run(lambda: llama(*shape, checkpoints=False).requires_grad_(False).eval(), ids,
               share=0.25)
    times = in_turn({"ours": forward(ours.model), "theirs": forward(theirs)})
    compared("peers.accelerate", times["ours"], times["theirs"],
             "accelerate's cpu_offload, a forward pass", 1.0, tokens=ids.numel())


# -- the call -------------------------------------------------------------------------------------


def late(case):
    """A case on the double, which sees what is not ordered."""
    import double
    double.register(str(OPTIONS.module), torch_order=False)  # as on a GPU
    try:
        case()
    finally:
        for one in OPEN:
            one.end()
        near().synchronize()
        if faults := double.violations():
            raise AssertionError(f"{len(faults)} accesses are not ordered: {faults[0]}")


def main():
    name, status = OPTIONS.cases[0], 0
    case = globals()[f"case_{name}"]
    try:
        if OPTIONS.device == "cuda" and not torch.cuda.is_available():
            raise Skip(f"PyTorch {torch.__version__} sees no GPU")
        if OPTIONS.device == "cuda":
            MACHINE["device"] = torch.cuda.get_device_name()
        late(case) if OPTIONS.device == "late" else case()
    except Skip as reason:
        write(OPTIONS, {"case": name, "skipped": str(reason)})
        status = SKIPPED
    except Exception as error:
        traceback.print_exc()
        write(OPTIONS, {"case": name, "failed": f"{type(error).__name__}: {error}"})
        status = 1
    for one in list(OPEN):
        with contextlib.suppress(Exception):  # the device may be lost
            one.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
