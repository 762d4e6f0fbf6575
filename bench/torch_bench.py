# SPDX-License-Identifier: Apache-2.0
"""One way to train a model, in a process of its own: stepwell.torch, plain PyTorch, or a peer.

Prints JSON objects, one a line. A process is one configuration, so that its peak of resident memory
is that configuration's. bench/bench_torch.py runs them in turn.

usage: torch_bench.py WHAT [--dir DIRECTORY] [--steps N] [--small]
WHAT: plain-fused, plain-foreach, plain-loop: AdamW's three forms in torch
      activations: plain forward and backward passes alone, for their memory
      resident, nvme: offloaded, with room for everything and with a quarter of it
      nvme-in-backward: as nvme, with updates in backward
      hooks: what calls of units cost; equal: losses beside those of plain torch
      fsdp, mapped, deepspeed-nvme, deepspeed-host: peers
      forward, accelerate: a forward pass alone, from the drive
      lora-plain, lora: a Llama of transformers in bf16 with adapters of peft, its base frozen
      init: answers the commands of Init below, a line each
"""
import argparse
import importlib.util
import json
import os
import shutil
import socket
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

MIB = 1 << 20
WARM_UP = 3     # steps: an offloaded model plans from the second on
LR = 1e-4
HOOK_UNITS = 200
EQUAL_STEPS = 20
STATE_BYTES = 16  # of a parameter in fp32 with AdamW: itself, its gradient, two moments
INIT_BUDGET = 192 * MIB
LORA_BUDGET = 448 * MIB


# -- the model ------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2's layers; the head shares the embedding's weight."""

    def __init__(self, layers, width, words, length):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(
            torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


SMALL = (2, 128, 512, 32)  # layers, width, words, length


class Work:
    """The model and its batches, the same in every process."""

    def __init__(self, small, sizes=(8, 768, 8192, 256)):
        self.small = small
        layers, width, self.words, self.length = SMALL if small else sizes
        torch.manual_seed(1)
        self.model = Gpt(layers, width, self.words, self.length)
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def batch(self, step):
        made = torch.Generator().manual_seed(step)
        return torch.randint(self.words, (2, self.length + 1), generator=made)

    def loss(self, model, step):
        batch = self.batch(step)
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def lora_of(small):
    """A Llama of 1.1e9 random parameters in bf16; adapters of the attention's q and v in fp32."""
    import peft
    import transformers

    transformers.logging.set_verbosity_error()
    wide = (dict(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2)
            if small else dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632,
                               num_hidden_layers=22))
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    base = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_attention_heads=wide["hidden_size"] // 64, use_cache=False,
        num_key_value_heads=max(1, wide["hidden_size"] // 512), **wide))
    torch.set_default_dtype(torch.float32)
    return peft.get_peft_model(base, peft.LoraConfig(
        r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))


# -- measuring ------------------------------------------------------------------------------------


def peak_bytes(field="VmHWM"):
    """VmHWM: the most resident memory since start, or since forget_peak(). VmRSS: now."""
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status does not say {field}")


def forget_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def use_all_cores():
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def timed(step, count, end=lambda: None, begin=lambda: None):
    """Seconds a step after the warm-up, and the peaks of the process's life and of its steps."""
    use_all_cores()  # a peer may have chosen otherwise
    at_start = peak_bytes()
    forget_peak()
    for number in range(WARM_UP):
        step(number)
    end()
    begin()
    started = time.perf_counter()
    for number in range(WARM_UP, WARM_UP + count):
        loss = step(number)
    end()
    seconds = (time.perf_counter() - started) / count
    steps_peak = peak_bytes()
    return {"step_seconds": seconds, "peak_bytes": max(at_start, steps_peak),
            "steps_peak_bytes": steps_peak, "loss": loss}


def trained(work, model, optimizer):
    """A step of the usual loop."""
    def step(number):
        loss = work.loss(model, number)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()
    return step


def adamw(parameters, form="fused"):
    forms = {"fused": {"fused": True}, "foreach": {"foreach": True},
             "loop": {"foreach": False, "fused": False}}
    return torch.optim.AdamW(parameters, LR, **forms[form])


def plain(options, form):
    work = Work(options.small)
    optimizer = adamw(work.model.parameters(), form)
    found = timed(trained(work, work.model, optimizer), options.steps)
    return {**found, "state_bytes": STATE_BYTES * work.parameters, "parameters": work.parameters}


def activations(options):
    """Memory of forward and backward without gradients that stay and without states. The peak of
    plain training cannot say it: it comes when most activations are gone and all gradients are
    there. With an optimizer, whose constructor loads 70 MiB of modules of torch."""
    work = Work(options.small)
    adamw(work.model.parameters())

    def drop(parameter):
        parameter.grad = None

    for parameter in work.model.parameters():
        parameter.register_post_accumulate_grad_hook(drop)

    def step(number):
        loss = work.loss(work.model, number)
        loss.backward()
        return loss.item()

    found = timed(step, options.steps)
    return {**found, "bytes": found["peak_bytes"] - 4 * work.parameters}


# -- ours -----------------------------------------------------------------------------------------


def nvme_bytes_of(runtime):
    found = {"read": 0, "write": 0}
    for link, way in (("nvme_to_host", "read"), ("nvme_to_device", "read"),
                      ("host_to_nvme", "write"), ("device_to_nvme", "write")):
        found[way] += runtime.link_stats(link).bytes
    return found


def timed_moves(step, count, runtime):
    """timed(), and the bytes that the drive moves in a step."""
    moved = {}
    found = timed(step, count, end=runtime.drain,
                  begin=lambda: moved.update(nvme_bytes_of(runtime)))
    after = nvme_bytes_of(runtime)
    return {**found, **{f"{way}_bytes_per_step": (after[way] - moved[way]) / count
                        for way in after}}


def offloaded(options, share, train=True, in_backward=False):
    """share: of the bytes of parameters, gradients and states, the device budget."""
    import stepwell
    import stepwell.torch

    work = Work(options.small)
    model = work.model
    budget = int(STATE_BYTES * work.parameters * share)
    optimizer = adamw(model.parameters()) if train else None
    block = stepwell.BLOCK_64K if options.small else None
    stepwell.torch.offload(model, optimizer, device_bytes=budget,
                           nvme=options.dir if share < 1 else None,
                           update_in_backward=in_backward,
                           **({"block_bytes": block} if block else {}))
    tiers = stepwell.torch.offloaded(model)
    step = trained(work, model, optimizer) if train else forward_of(work, model)
    found = timed_moves(step, options.steps, tiers.runtime)
    found["budget_bytes"] = budget
    found["peak_budget_bytes"] = tiers.runtime.tier_stats("device").peak_bytes
    found["units"] = len(tiers.units)
    tiers.runtime.close(deferred=True)  # tiers.close() would take memory for the model and states
    return found


class Init:
    """make, step, save and load a model of 1e9 parameters that never lies in memory as a whole.

    SGD without momentum: the drive has parameters and gradients.
    """

    def __init__(self, options):
        self.small = options.small
        self.directory = options.dir
        self.saved = os.path.join(options.dir, "saved")
        self.sizes = SMALL if options.small else (36, 1536, 8192, 16)
        # What the interpreter and PyTorch have once they have trained anything.
        little = Work(True)
        trained(little, little.model, adamw(little.model.parameters()))(0)
        del little
        self.before = peak_bytes("VmRSS")
        self.tiers = self.work = None

    def make(self):
        import stepwell
        import stepwell.torch

        budget = 4 * MIB if self.small else INIT_BUDGET
        layers, width, words, length = self.sizes
        need = 12 * layers * width * (width + 2) + width * (words + length)
        block = stepwell.BLOCK_64K if self.small else stepwell.BLOCK_2M
        with stepwell.torch.init(device_bytes=budget, nvme=self.directory, block_bytes=block,
                                 nvme_bytes=int(8.2 * need) + 64 * block) as self.tiers:
            self.work = Work(self.small, self.sizes)
        self.optimizer = torch.optim.SGD(self.work.model.parameters(), LR, fused=True)
        self.tiers.offload(self.work.model, self.optimizer)
        return {"parameters": self.work.parameters, "budget_bytes": budget}

    def step(self):
        return {"loss": trained(self.work, self.work.model, self.optimizer)(0)}

    def save(self):
        import stepwell.torch

        stepwell.torch.save_safetensors(self.work.model, self.saved)
        return {"written": self.of_files(lambda file: os.fstat(file).st_size)}

    def load(self):
        import stepwell.torch

        stepwell.torch.load_safetensors(self.work.model, self.saved)
        return {"read": self.of_files(lambda file: os.fstat(file).st_size)}

    def of_files(self, call):
        found = 0
        for name in os.listdir(self.saved):
            file = os.open(os.path.join(self.saved, name), os.O_RDONLY)
            found += call(file) or 0
            os.close(file)
        return found

    def answer(self, command):
        """Seconds, the bytes that the drive moved, and the peak of memory beyond the interpreter's.
        A save replaces no file, as freeing its blocks is not timed with fio's either; a load finds
        nothing of the files in the page cache. What is dirty in the tiers counts to the command
        that made it so."""
        if command == "save":
            shutil.rmtree(self.saved, ignore_errors=True)
        if command == "load":
            self.of_files(lambda file: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED))
        forget_peak()
        before = nvme_bytes_of(self.tiers.runtime) if self.tiers else {"read": 0, "write": 0}
        started = time.perf_counter()
        found = {"save": self.save, "load": self.load, "make": self.make, "step": self.step}[
            command]()
        self.tiers.runtime.drain()
        found["seconds"] = time.perf_counter() - started
        after = nvme_bytes_of(self.tiers.runtime)
        found["read_bytes"] = after["read"] - before["read"] + found.pop("read", 0)
        found["write_bytes"] = after["write"] - before["write"] + found.pop("written", 0)
        found["grown_bytes"] = peak_bytes() - self.before
        return found


def init(options):
    run = Init(options)
    for command in sys.stdin:
        print(json.dumps(run.answer(command.strip())), flush=True)
    shutil.rmtree(run.saved, ignore_errors=True)
    return []


class LoraWork:
    """Sequences of 64 for lora_of()."""

    def loss(self, model, step):
        made = torch.Generator().manual_seed(step)
        tokens = torch.randint(model.config.vocab_size, (1, 64), generator=made)
        return model(input_ids=tokens, labels=tokens).loss


def lora_plain(options):
    model = lora_of(options.small)
    adapters = [p for p in model.parameters() if p.requires_grad]
    return timed(trained(LoraWork(), model, adamw(adapters)), options.steps)


def lora(options):
    import stepwell
    import stepwell.torch

    budget = 4 * MIB if options.small else LORA_BUDGET
    with stepwell.torch.init(device_bytes=budget, nvme=options.dir,
                             block_bytes=(stepwell.BLOCK_64K if options.small
                                          else stepwell.BLOCK_2M),
                             nvme_bytes=(64 if options.small else 3072) * MIB) as tiers:
        model = lora_of(options.small)
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = adamw(adapters)
    tiers.offload(model, optimizer)
    found = timed_moves(trained(LoraWork(), model, optimizer), options.steps, tiers.runtime)
    return {**found, "budget_bytes": budget,
            "base_bytes": sum(p.numel() * p.element_size() for p in model.parameters()
                              if not p.requires_grad),
            "parameters": sum(p.numel() for p in model.parameters()),
            "adapter_parameters": sum(p.numel() for p in adapters),
            "nvme_bytes": tiers.runtime.tier_stats("nvme").used_bytes}


def forward_of(work, model):
    model.eval()

    def step(number):
        with torch.no_grad():
            return work.loss(model, number).item()
    return step


def hooks(options):
    """A line a round. Processor time of the thread that calls and runs backward: nothing waits."""
    import stepwell.torch

    torch.set_num_threads(1)
    width = 64

    def make():
        torch.manual_seed(1)
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(HOOK_UNITS)))

    model, ours = make(), make()
    optimizer = torch.optim.SGD(ours.parameters(), 1e-3)
    # A unit is an eighth of the budget at most, so that each layer is one; all of them fit.
    budget = 7 * 4 * sum(p.numel() for p in ours.parameters())
    stepwell.torch.offload(ours, optimizer, device_bytes=budget,
                           block_bytes=stepwell.BLOCK_64K)
    tiers = stepwell.torch.offloaded(ours)
    if len(tiers.units) != HOOK_UNITS:
        raise RuntimeError(f"{len(tiers.units)} units of {HOOK_UNITS} layers")
    data = torch.randn(1, width)

    def once(which):
        started = time.thread_time_ns()
        which(data).sum().backward()
        return time.thread_time_ns() - started

    lines = []
    for number in range(2 + options.steps):
        theirs = once(model)
        model.zero_grad()
        mine = once(ours)
        optimizer.step()
        optimizer.zero_grad()
        tiers.runtime.drain()
        if number >= 2:
            lines.append({"us_per_unit": (mine - theirs) / HOOK_UNITS / 1e3,
                          "plain_us_per_unit": theirs / HOOK_UNITS / 1e3})
    tiers.close()
    return lines


# -- equal losses ---------------------------------------------------------------------------------


def gpt2_of(small):
    """transformers' GPT-2 where it is installed, else the model above."""
    if importlib.util.find_spec("transformers") is None:
        work = Work(True)
        return "gpt", work.model, lambda model, step: work.loss(model, step)
    import transformers
    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        n_layer=2 if small else 4, n_embd=128 if small else 256, n_head=4, vocab_size=512,
        n_positions=64, bos_token_id=0, eos_token_id=0)

    def loss(model, step):
        made = torch.Generator().manual_seed(step)
        tokens = torch.randint(512, (2, 64), generator=made)
        return model(tokens, labels=tokens).loss
    return "gpt2", transformers.GPT2LMHeadModel(config), loss


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 128)
        self.layers = nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 256)

    def forward(self, tokens):
        return self.head(self.layers(self.tokens(tokens))[0])


def lstm_of(_):
    def loss(model, step):
        made = torch.Generator().manual_seed(step)
        tokens = torch.randint(256, (4, 33), generator=made)
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    return "lstm", Lstm(), loss


def cnn_of(_):
    layers, before = [], 3
    for width in (32, 64, 128, 256):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                   nn.MaxPool2d(2)]
        before = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * before, 10))

    def loss(model, step):
        made = torch.Generator().manual_seed(step)
        images = torch.randn(8, 3, 32, 32, generator=made)
        return F.cross_entropy(model(images), torch.arange(8))
    return "cnn", model, loss


def losses(make, options, ours):
    torch.manual_seed(1)
    name, model, loss_of = make(options.small)
    # Torch's own loop over parameters, in the order of operations that its documentation has.
    optimizer = adamw(model.parameters(), "loop")
    if ours:
        import stepwell
        import stepwell.torch
        parameter_bytes = 4 * sum(p.numel() for p in model.parameters())
        largest = 4 * max(p.numel() for p in model.parameters())
        # As little as its largest unit allows: gradients and states do not fit.
        budget = max(2 * parameter_bytes, 3 * largest) + 32 * stepwell.BLOCK_64K
        stepwell.torch.offload(model, optimizer, device_bytes=budget, nvme=options.dir,
                               block_bytes=stepwell.BLOCK_64K)
    found = []
    for step in range(EQUAL_STEPS):
        torch.manual_seed(step)  # of dropout
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    if ours:
        stepwell.torch.offloaded(model).close()
    return name, found


def equal(options):
    lines = []
    for make in (gpt2_of, lstm_of, cnn_of):
        name, theirs = losses(make, options, False)
        _, mine = losses(make, options, True)
        apart = [abs(one - other) / abs(other) for one, other in zip(mine, theirs)]
        lines.append({"model": name, "steps": EQUAL_STEPS, "relative_difference": max(apart),
                      "equal": sum(one == other for one, other in zip(mine, theirs))})
    return lines


# -- peers ----------------------------------------------------------------------------------------


def one_rank():
    """What torch.distributed wants to know of a group of one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")


def fsdp(options):
    """Everything in host memory, parameters copied before their module: nothing behind it."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    one_rank()
    init_process_group("gloo")
    work = Work(options.small)
    mesh = init_device_mesh("cpu", (1,))
    policy = CPUOffloadPolicy(pin_memory=False)
    for block in work.model.blocks:
        fully_shard(block, mesh=mesh, offload_policy=policy)
    fully_shard(work.model, mesh=mesh, offload_policy=policy)
    found = timed(trained(work, work.model, adamw(work.model.parameters())), options.steps)
    destroy_process_group()
    return found


def mapped(options):
    """Parameters and moments in maps of files: the kernel's page cache is the only tier."""
    work = Work(options.small)
    optimizer = adamw(work.model.parameters())

    def file_of(like):
        path = os.path.join(options.dir, f"map-{file_of.count}")
        file_of.count += 1
        made = torch.from_file(path, shared=True, size=like.numel(), dtype=like.dtype)
        os.unlink(path)
        return made.view_as(like)
    file_of.count = 0
    for parameter in work.model.parameters():
        parameter.data = file_of(parameter).copy_(parameter.data)
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            **{name: file_of(parameter) for name in ("exp_avg", "exp_avg_sq")}}
    return timed(trained(work, work.model, optimizer), options.steps)


def deepspeed(options, device):
    """ZeRO-3 over one rank. Its first start compiles.

    Its defaults are for models of 1e9 parameters and more, and keep all of this one in memory.
    Here buffers and buckets are of the largest parameter, and four of them may be live. On nvme the
    optimizer's states are read ahead and written while others are updated, which takes 12 buffers.
    """
    one_rank()
    os.environ["DS_ACCELERATOR"] = "cpu"
    sys.argv = sys.argv[:1]
    import deepspeed as library

    work = Work(options.small)
    largest = max(p.numel() for p in work.model.parameters())
    place = {"device": device, "pin_memory": True}
    parameters, states = {}, {}
    if device == "nvme":
        place["nvme_path"] = options.dir
        parameters = {"buffer_count": 5, "buffer_size": largest, "max_in_cpu": 0}
        states = {"buffer_count": 12, "pipeline_read": True, "pipeline_write": True}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {**place, **parameters},
            "offload_optimizer": {**place, **states},
            "sub_group_size": largest,
            "reduce_bucket_size": largest,
            "stage3_prefetch_bucket_size": largest,
            "stage3_max_live_parameters": 4 * largest,
            "stage3_max_reuse_distance": 2 * largest,
        },
        "aio": {"block_size": MIB, "queue_depth": 16, "single_submit": False,
                "overlap_events": True},
    }
    library.init_distributed("gloo")
    # initialize() by itself takes buffers of bfloat16 where the processor has no fp16 (0.19.8).
    library.zero.Init(module=work.model, config_dict_or_path=config)
    engine, *_ = library.initialize(
        model=work.model, model_parameters=work.model.parameters(), config=config)

    def step(number):
        loss = work.loss(engine, number)
        engine.backward(loss)
        engine.step()
        return loss.item()
    return timed(step, options.steps)


def accelerate(options):
    import accelerate as library

    work = Work(options.small)
    library.disk_offload(work.model, os.path.join(options.dir, "accelerate"),
                         execution_device=torch.device("cpu"))
    return timed(forward_of(work, work.model), options.steps)


RUNS = {
    "plain-fused": lambda options: plain(options, "fused"),
    "plain-foreach": lambda options: plain(options, "foreach"),
    "plain-loop": lambda options: plain(options, "loop"),
    "activations": activations,
    "resident": lambda options: offloaded(options, 1.25),
    "nvme": lambda options: offloaded(options, 0.25),
    "nvme-in-backward": lambda options: offloaded(options, 0.25, in_backward=True),
    "forward": lambda options: offloaded(options, 0.0625, train=False),
    "init": init,
    "lora-plain": lora_plain,
    "lora": lora,
    "hooks": hooks,
    "equal": equal,
    "fsdp": fsdp,
    "mapped": mapped,
    "deepspeed-nvme": lambda options: deepspeed(options, "nvme"),
    "deepspeed-host": lambda options: deepspeed(options, "cpu"),
    "accelerate": accelerate,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("--dir", help="an existing directory on the drive")
    parser.add_argument("--steps", type=int, default=5, help="after the warm-up")
    parser.add_argument("--small", action="store_true", help="a tiny model: whether it works")
    options = parser.parse_args()
    use_all_cores()
    found = RUNS[options.what](options)
    for line in found if isinstance(found, list) else [found]:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
