# SPDX-License-Identifier: Apache-2.0
"""What the cases of bench/torch_gpu_check.py measure with: figures, steps in turn, models and loops
that train them, and rates of the machine.
"""
import copy
import gc
import importlib
import os
import platform
import shutil
import statistics
import subprocess
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch_bench import Gpt
from torch_gpu_check import arguments, write

import stepwell
import stepwell.torch

GIB, MIB, GB = 1 << 30, 1 << 20, 1e9
BLOCK = stepwell.BLOCK_2M
F32, BF16 = torch.float32, torch.bfloat16
BEGIN = time.monotonic()
OPEN = []  # runs in tiers
NO_DRIVE = "no directory was given (--nvme DIR)"
OPTIONS = arguments()
MACHINE = {"device": OPTIONS.device, "versions": {
    "stepwell": stepwell.__version__, "torch": torch.__version__,
    "python": platform.python_version()}}


class Skip(Exception):
    """Why a case cannot run here."""


def sized(real, tiny):
    return tiny if OPTIONS.tiny else real


# -- what is told ---------------------------------------------------------------------------------


def digits(value):
    return float(f"{value:.4g}") if isinstance(value, float) else value


def say(name, value, unit, against=None, reference=None, ratios=(), goal=None, most=None, **more):
    """A figure. ratios: of pairs, higher is better; the goal is for their median, if there are any,
    else for the value. most: a goal that the value is not to exceed."""
    ratio = statistics.median(ratios) if ratios else None
    reached = None
    if most is not None:
        reached = value <= most
    elif goal is not None:
        reached = (value if ratio is None else ratio) >= goal
    write(OPTIONS, {
        "name": name, "value": digits(value), "unit": unit, "against": against,
        "reference": digits(reference), "ratio": digits(ratio),
        "spread": [digits(min(ratios)), digits(max(ratios))] if ratios else None,
        "pairs": len(ratios), "goal": goal if most is None else most,
        "at_most": most is not None, "reached": reached, **more, **MACHINE})


def compared(name, ours, reference, against, goal=None, run=None, **more):
    """Seconds a step, of rounds in turn. run: ours."""
    if run is not None:
        rate = run.ids[:, 1:].numel() / statistics.median(ours)
        flops = 4 * run.parameters + 2 * run.trained  # of a token; nothing is computed again
        more = {"parameters": run.parameters, "tokens_per_s": round(rate),
                "tflops": digits(flops * rate / 1e12), **more}
    say(name, statistics.median(ours), "s a step", against, statistics.median(reference),
        [their / our for their, our in zip(reference, ours)], goal, **more)


def absent(name, why):
    write(OPTIONS, {"name": name, "absent": why})


# -- time -----------------------------------------------------------------------------------------


def near():
    return getattr(torch, OPTIONS.device)


def left():
    return OPTIONS.limit - (time.monotonic() - BEGIN)


def seconds(function):
    near().synchronize()
    begin = time.perf_counter()
    function()
    near().synchronize()
    return time.perf_counter() - begin


def median_of(function, rounds=5):
    function()
    return statistics.median(seconds(function) for _ in range(rounds))


def in_turn(runs, rounds=5, each=2, warm=3, reserve=5):
    """Seconds a step of each: in every round a step to get going, then `each` that count. Fewer
    rounds, if there is no time."""
    for one in runs.values():
        for _ in range(warm):  # an offloaded model plans from the second on
            one.step()
        one.end()
    found, longest, number = {name: [] for name in runs}, 0.0, 0
    while number == 0 or number < rounds and left() > 1.5 * longest + reserve:
        begin = time.monotonic()
        for name, one in runs.items():
            one.step()
            found[name].append(seconds(lambda: [one.step() for _ in range(each)]) / each)
            one.end()
        longest, number = max(longest, time.monotonic() - begin), number + 1
    return found


# -- models ---------------------------------------------------------------------------------------


def made(make, dtype):
    """The model, drawn on the device from the same seed each time."""
    torch.manual_seed(0)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(OPTIONS.device):
            return make()
    finally:
        torch.set_default_dtype(F32)


def room_of(model):
    """Of parameters, gradients and the states of AdamW, each in blocks of its own."""
    nbytes = 0
    for parameter in model.parameters():
        each = parameter.element_size()
        sizes = [each, each, 4, 4] + [4] * (each < 4) if parameter.requires_grad else [each]
        nbytes += sum(-(-parameter.numel() * size // BLOCK) * BLOCK for size in sizes)
    return nbytes


class Run:
    """A model and the loop that trains it. share: of room_of(), the device's memory; None, without
    budgets: plain PyTorch. host: likewise, None for all, which has to fit into the last tier;
    budgets: both in bytes."""

    def __init__(self, make, ids, dtype=BF16, share=None, host=None, nvme=False, budgets=None,
                 fused=None, clip=None, micro=1, autocast=False, **options):
        self.model = made(make, dtype)
        parameters = list(self.model.parameters())
        trained = [each for each in parameters if each.requires_grad]
        self.parameters, self.trained = (sum(each.numel() for each in some)
                                         for some in (parameters, trained))
        self.optimizer = torch.optim.AdamW(trained, 1e-4, fused=fused) if trained else None
        self.ids, self.clip, self.micro, self.autocast = ids, clip, micro, autocast
        self.losses, self.tiers = [], None
        if share is not None:  # and what is worked in
            room, host = room_of(self.model), host or 1.1
            budgets = share * room + 4 * BLOCK, host * room + 32 * BLOCK
        if budgets is not None:
            stepwell.torch.offload(
                self.model, self.optimizer, device_bytes=int(budgets[0]),
                host_bytes=int(budgets[1]), nvme=drive() if nvme else None, probe=False, **options)
            self.tiers = stepwell.torch.offloaded(self.model)
            OPEN.append(self)
        gc.collect()
        if OPTIONS.device != "cpu":
            near().empty_cache()

    def step(self):
        for ids in self.ids.chunk(self.micro):
            with torch.autocast(OPTIONS.device, BF16, enabled=self.autocast):
                out = self.model(ids[:, :-1])
            out = getattr(out, "logits", out).flatten(0, 1).float()
            loss = F.cross_entropy(out, ids[:, 1:].flatten()) / self.micro
            loss.backward()
            self.losses.append(loss.detach())
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def end(self):
        near().synchronize()
        if self.tiers is not None:
            self.tiers.runtime.drain()

    def clipped(self):
        """The same model in a loop that clips."""
        other = copy.copy(self)
        other.clip = 1.0
        return other

    def totals(self):
        self.end()
        runtime, link = self.tiers.runtime, stepwell.Link
        stats = runtime.tier_stats("device")
        links = {"up": (link.HOST_TO_DEVICE, link.NVME_TO_DEVICE),
                 "down": (link.DEVICE_TO_HOST, link.DEVICE_TO_NVME),
                 "read": (link.NVME_TO_HOST, link.NVME_TO_DEVICE),
                 "written": (link.HOST_TO_NVME, link.DEVICE_TO_NVME)}
        return {"remapped": stats.remapped_bytes, "remapped_ns": stats.remapped_ns,
                "busy_ns": runtime.link_stats(link.HOST_TO_DEVICE).busy_ns,
                **{way: sum(runtime.link_stats(one).bytes for one in both)
                   for way, both in links.items()}}

    def moves(self, steps=1):
        """What a step moves on each link, in bytes, and maps."""
        before = self.totals()
        for _ in range(steps):
            self.step()
        return {name: (value - before[name]) / steps for name, value in self.totals().items()}

    def close(self):
        """The tiers go, and the model with them: there may be no other memory for it."""
        self.end()
        self.tiers.runtime.close(deferred=True)
        OPEN.remove(self)


def words(batch, length, vocabulary):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(vocabulary, (batch, length + 1), generator=generator).to(OPTIONS.device)


def gpt(share=None, **options):
    """Shapes of GPT-2 XL, 16 x 1,024 tokens."""
    layers, width, vocabulary, length, batch = sized((48, 1600, 50257, 1024, 16),
                                                     (2, 64, 128, 16, 2))
    return Run(lambda: Gpt(layers, width, vocabulary, length), words(batch, length, vocabulary),
               share=share, fused=True if share is None else None, **options)


def equal_layers(share, dtype=BF16, **options):
    """A model that computes little for its bytes."""
    layers, width = sized((24, 4096), (24, 512))

    class Stack(nn.Sequential):
        def forward(self, ids):
            return super().forward(torch.ones(*ids.shape, width, device=ids.device, dtype=dtype))
    return Run(lambda: Stack(*(nn.Linear(width, width) for _ in range(layers))),
               words(1, 8, width), dtype, share, **options)


def module(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skip(f"{name} is not here: {error}") from None


def llama(layers, width, inner, heads, pairs, vocabulary, checkpoints=True):
    config = module("transformers").LlamaConfig(
        num_hidden_layers=layers, hidden_size=width, intermediate_size=inner, use_cache=False,
        num_attention_heads=heads, num_key_value_heads=pairs, vocab_size=vocabulary)
    model = module("transformers").LlamaForCausalLM(config)
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def lora(*shape, **options):
    return module("peft").get_peft_model(llama(*shape, **options), module("peft").LoraConfig(
        r=16, target_modules=["q_proj", "v_proj"]))


# -- the machine ----------------------------------------------------------------------------------


def drive():
    if OPTIONS.nvme is None:
        raise Skip(NO_DRIVE)
    return OPTIONS.nvme


def drive_rate(ways, nbytes=sized(2 * GIB, 4 * MIB), files=4):
    """Bytes a second of "r" and "w" together, by programs that go past the page cache."""
    folder = drive() / f"rate-{os.getpid()}"
    chunk = min(16 * MIB, nbytes // files)

    def move(way, name):
        path = str(folder / name)
        words = {"w": ["if=/dev/zero", f"of={path}", "oflag=direct", "conv=notrunc"],
                 "r": [f"if={path}", "of=/dev/null", "iflag=direct"]}[way]
        return subprocess.Popen(["dd", "status=none", f"bs={chunk}",
                                 f"count={nbytes // files // chunk}", *words])

    def all_of(moves):
        if any([process.wait() for process in [move(*each) for each in moves]]):
            raise RuntimeError(f"dd failed in {folder}")
    folder.mkdir()
    try:
        all_of(("w", f"{way}{i}") for way in ways for i in range(files))
        spent = seconds(lambda: all_of((way, f"{way}{i}") for way in ways for i in range(files)))
        return nbytes * len(ways) / spent
    finally:
        shutil.rmtree(folder)


def link_rates(nbytes=sized(GIB, MIB)):
    """Bytes a second from pinned memory up, down to it, and each of both at once."""
    far = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=OPTIONS.device == "cuda")
           for _ in range(2)]
    here = [torch.zeros(nbytes, dtype=torch.uint8, device=OPTIONS.device) for _ in range(2)]
    streams = near().Stream(), near().Stream()

    def up():
        here[0].copy_(far[0], non_blocking=True)

    def down():
        far[1].copy_(here[1], non_blocking=True)

    def both():
        for stream, one in zip(streams, (up, down)):
            with near().stream(stream):
                one()
    return {one.__name__: nbytes / median_of(one) for one in (up, down, both)}


def update_rates(elements=sized(256 * MIB, MIB), rounds=4):
    """Parameters a second of AdamW in fp32 on all cores: ours, and torch's fused form."""
    plain = nn.Parameter(torch.zeros(elements))
    plain.grad = torch.full_like(plain, 0.1)
    fused = torch.optim.AdamW([plain], fused=True)
    found = []
    with stepwell.Runtime(devices=18 * elements + 128 * BLOCK, probe=False, profile="",
                          thread_count=os.cpu_count()) as runtime:
        one, gradient = (runtime.create(role, elements, "f32", role=role)
                         for role in ("param", "grad"))
        one.fill(0.5)
        kernel = runtime.adamw(stepwell.Hyper(lr=1e-3))
        kernel.add(one, gradient)
        for _ in range(rounds):
            gradient.fill(0.1)
            found.append([elements / seconds(lambda: (kernel.step(), runtime.drain())),
                          elements / seconds(fused.step)])
    return zip(*found[1:])
