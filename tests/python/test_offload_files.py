# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.init(), files of safetensors, and generations: models that never fit anywhere.

Skipped where PyTorch is not installed.
"""
import copy
import ctypes
import errno
import fcntl
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_TRANSFORMERS = HAS_TORCH and importlib.util.find_spec("transformers") is not None
HAS_SAFETENSORS = HAS_TORCH and importlib.util.find_spec("safetensors") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch
if HAS_SAFETENSORS:
    import safetensors.torch

BLOCK = support.BLOCK


def tiers(directory, blocks=24, **options):
    return dict(device_bytes=blocks * BLOCK, block_bytes=BLOCK, thread_count=2,
                nvme=stepwell.Nvme(directory, (1 << 20) + 2048 * BLOCK,
                                   driver_options="allow_tmpfs=1"), **options)


def values_of(model):
    """Copies of all parameters and buffers, one at a time."""
    return {name: value.detach().clone() for name, value in
            list(model.named_parameters()) + list(model.named_buffers())}


def gpt2():
    import transformers  # for seconds
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=512, n_positions=64, n_embd=64, n_layer=4, n_head=4))


def t5():
    import transformers
    return transformers.T5ForConditionalGeneration(transformers.T5Config(
        vocab_size=512, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0))


if HAS_TORCH:
    class Block(nn.Module):
        """Initialises its children after they were made, and has parameters of its own."""

        def __init__(self, width):
            super().__init__()
            self.scale = nn.Parameter(torch.randn(width))
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width, bias=False)
            self.after = nn.Parameter(torch.empty(width, width))
            nn.init.normal_(self.up.weight, std=0.02)
            self.up.bias.data.fill_(0.25)
            nn.init.trunc_normal_(self.after, std=0.1)
            with torch.no_grad():
                self.down.weight[0].zero_()
                self.down.weight.mul_(0.5)
                self.scale.copy_(self.after.sum(0))

        def forward(self, x):
            return x + self.down(torch.relu(self.up(x * self.scale))) @ self.after

    class Custom(nn.Module):
        """Ties, replaces, reads, copies and clones what it has."""

        def __init__(self, width=128, layers=6):
            super().__init__()
            self.wte = nn.Embedding(200, width, padding_idx=0)
            self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
            self.clones = nn.ModuleList(copy.deepcopy(self.blocks[0]) for _ in range(2))
            self.list = nn.ParameterList(nn.Parameter(torch.randn(9)) for _ in range(4))
            self.named = nn.ParameterDict({"a": nn.Parameter(torch.rand(3, 5).t())})
            self.head = nn.Linear(width, 200, bias=False)
            self.head.weight = self.wte.weight
            self.other = nn.Linear(width, width)
            self.other.weight = nn.Parameter(torch.eye(width) * self.blocks[1].after.mean().item())
            self.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
            self.none = nn.Parameter(torch.empty(0))
            self.small = nn.Linear(width, width).to(torch.bfloat16)
            self.clones[1].down.to(torch.bfloat16)
            self.clones[1].up.bias.data = torch.ones(7)
            self.register_buffer("mean", torch.arange(5.0))
            self.apply(self.init)

        def init(self, module):
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.weight.data.normal_(0, 0.03)
                nn.init.zeros_(module.bias)

        def forward(self, ids):
            x = self.wte(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(self.other(self.clones[0](x)))

    class Bare(nn.Module):
        """A subclass without __init__()."""

        def forward(self, x):
            return x


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-files-", dir=".")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        if HAS_TORCH:
            torch.set_num_threads(2)

    def equal(self, ours, plain):
        self.assertEqual(list(ours), list(plain))
        for name, value in plain.items():
            self.assertEqual((ours[name].dtype, ours[name].shape), (value.dtype, value.shape), name)
            self.assertTrue(torch.equal(ours[name], value), name)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Init(Case):
    def same(self, make, blocks=24):
        """Make it plainly and in tiers: equal values, an equal random state, all in tiers."""
        torch.manual_seed(3)
        plain = make()
        state = torch.get_rng_state()
        torch.manual_seed(3)
        with stepwell.torch.init(**tiers(self.directory, blocks)) as made:
            model = make()
        try:
            self.assertTrue(torch.equal(torch.get_rng_state(), state))
            made.offload(model)
            for name, parameter in model.named_parameters():
                self.assertTrue(hasattr(parameter, "_stepwell"), name)
                self.assertEqual(parameter._stepwell.name, name)
            self.equal(values_of(model), values_of(plain))
            for name, parameter in plain.named_parameters():
                self.assertEqual(model.get_parameter(name).requires_grad, parameter.requires_grad)
        finally:
            made.close()
        self.equal(values_of(model), values_of(plain))

    def test_modules_of_torch_have_the_values_of_plain_construction(self):
        def every():
            return nn.ModuleList([
                nn.Linear(64, 64), nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.Embedding(100, 64),
                nn.LSTM(32, 32, 2, bidirectional=True), nn.MultiheadAttention(64, 4),
                nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128), 3,
                                      enable_nested_tensor=False),
                nn.Bilinear(4, 5, 6), nn.PReLU(), nn.GroupNorm(2, 8), Bare(),
                nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
                nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)),
                nn.Sequential(*[nn.Linear(128, 128) for _ in range(40)])])
        self.same(every)

    def test_a_nested_model_has_the_values_of_plain_construction(self):
        self.same(Custom)

    @unittest.skipUnless(HAS_TRANSFORMERS, support.NO_TRANSFORMERS)
    def test_models_of_transformers_have_the_values_of_plain_construction(self):
        for make in (gpt2, t5):
            with self.subTest(make.__name__):
                self.same(make)
                path = os.path.join(self.directory, make.__name__)
                make().save_pretrained(path)
                self.same(lambda kind=type(make()): kind.from_pretrained(path))

    def test_a_model_that_was_made_in_tiers_trains_as_a_plain_one(self):
        def train(model, optimizer):
            for seed in range(2):
                torch.manual_seed(seed)
                loss = model(torch.randint(0, 200, (2, 16))).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                yield loss.item()
        torch.manual_seed(1)
        model = Custom()
        plain = list(train(model, torch.optim.RMSprop(model.parameters(), foreach=False)))
        torch.manual_seed(1)
        with stepwell.torch.init(**tiers(self.directory, 32)) as made:
            model = Custom()
        optimizer = torch.optim.RMSprop(model.parameters(), foreach=False)
        made.offload(model, optimizer)
        self.assertEqual(list(train(model, optimizer)), plain)
        made.close()

    def test_tensors_of_parameters_that_nothing_refers_to_are_destroyed(self):
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(4)])
            model[1].weight = model[0].weight
            model[2].bias = nn.Parameter(torch.zeros(32))
            loose = nn.Linear(8, 8)
            unused = nn.Linear(16, 16)
            nn.Linear(4, 4)
            del unused
        before = len(list(made.runtime))
        made.offload(model)
        self.assertEqual(before - len(list(made.runtime)), 2 + 2)
        with torch.no_grad():
            self.assertEqual(loose.weight.add_(1).shape, (8, 8))
        made.close()
        self.assertIs(type(loose.weight), nn.Parameter)
        self.assertIs(model[0].weight, model[1].weight)

    def test_memory_that_something_else_writes_to_stays_where_it_is(self):
        class Writes(nn.Module):
            def __init__(self):
                super().__init__()
                data = torch.zeros(100)
                self.own = nn.Parameter(data)
                self.child = nn.Linear(5, 5)
                shown = self.child.weight.data
                self.next = nn.Linear(5, 5)
                data.fill_(3)
                shown.fill_(4)
        self.same(Writes)

    def test_little_is_in_plain_memory_meanwhile(self):
        most = []

        def plain():
            gc.collect()
            return sum(each.numel() * each.element_size() for each in gc.get_objects()
                       if type(each) is nn.Parameter)

        class Watched(nn.Linear):
            def __init__(self):
                super().__init__(128, 128)
                most.append(plain() - before)
        before = plain()
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Sequential(*[Watched() for _ in range(30)])
            self.assertLessEqual(max(most), 4 * 129 * 128)
            copies = []
            for layer in model:
                copies.append(copy.deepcopy(layer))
                self.assertLessEqual(plain() - before, 4 * 128 * 128 + 3 * BLOCK)
        self.assertLessEqual(plain() - before, 0)
        self.assertLessEqual(made.runtime.tier_stats("device").peak_bytes, 24 * BLOCK)
        made.offload(model)
        made.close()

    def test_a_weight_waits_in_plain_memory_until_its_module_has_drawn_it(self):
        with stepwell.torch.init(**tiers(self.directory)) as made:  # a unit has 3 blocks, these 4
            nn.Sequential(*[nn.Linear(256, 256) for _ in range(24)])
        made.runtime.drain()
        written = made.runtime.link_stats("device_to_nvme").bytes
        # Each once, and the block of biases each time it leaves.
        self.assertLessEqual(written, 24 * (4 + 1) * BLOCK)
        made.close()

    def test_what_is_drawn_in_its_tier_is_not_copied(self):
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
            with unittest.mock.patch.object(torch.Tensor, "clone") as clone:
                nn.init.ones_(model[0].weight)
            self.assertFalse(clone.called)
        self.assertEqual(model[0].weight.sum().item(), 64 * 64)
        made.close()

    def test_a_model_that_is_refused_is_as_before(self):
        def make():
            return nn.Sequential(nn.Linear(8, 8), nn.MultiheadAttention(64 * 8, 4))
        words = "module '1' .*are used together"
        model = make()
        before = values_of(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with self.assertRaisesRegex(stepwell.BudgetError, words):
            stepwell.torch.offload(model, optimizer, **tiers(self.directory, 56))
        self.assertTrue(all(type(each) is nn.Parameter for each in model.parameters()))
        self.equal(values_of(model), before)
        with stepwell.torch.init(**tiers(self.directory, 56)) as made:
            model = make()
        with self.assertRaisesRegex(stepwell.BudgetError, words):
            made.offload(model)
        made.offload(model[0])
        model[0](torch.ones(2, 8)).sum().backward()
        made.close()

    def test_what_makes_no_sense_is_refused(self):
        with self.assertRaisesRegex(ValueError, "needs nvme_bytes"):
            stepwell.torch.init(device_bytes="4MiB", nvme=self.directory)
        with stepwell.torch.init(**tiers(self.directory)) as made:
            with self.assertRaisesRegex(ValueError, "inside init"):
                with stepwell.torch.init(**tiers(self.directory)):
                    pass
            with self.assertRaisesRegex(ValueError, "after the with"):
                made.offload(nn.Linear(2, 2))
        made.close()
        self.assertIs(type(nn.Linear(2, 2).weight), nn.Parameter)
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.Linear(2, 2)
        made.offload(model)
        with self.assertRaisesRegex(ValueError, "have a model already"):
            made.offload(nn.Linear(2, 2))
        made.close()
        with stepwell.torch.init(**tiers(self.directory)) as made:
            model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
            model[1].weight = nn.Parameter(model[0].weight)
        with self.assertRaisesRegex(ValueError, "'1.weight' was made as Parameter.. of '0.weight'"):
            made.offload(model)
        made.close()


# A model of 48 MiB, made, trained for one step, saved and loaded; prints by how many bytes its
# process grew at most.
GROWS = """
import ctypes, sys
import torch, support
from torch import nn
import stepwell, stepwell.torch
from test_offload_files import tiers

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))

def run(layers, width, directory):
    with stepwell.torch.init(**tiers(directory, 96)) as made:
        model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    made.offload(model, optimizer)
    model(torch.ones(4, width)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    stepwell.torch.save_safetensors(model, directory + "/saved", max_shard_bytes="20MiB")
    stepwell.torch.load_safetensors(model, directory + "/saved")
    stats = made.runtime.tier_stats("device")
    assert stats.peak_bytes <= 96 * stepwell.BLOCK_64K, stats
    made.runtime.close(deferred=True)

torch.set_num_threads(2)
# M_MMAP_THRESHOLD, fixed: by itself glibc raises it with the first gradient that is freed, and the
# peak is then that of its heap, whose freed pieces of 1 MiB do not fit the next aligned request.
assert ctypes.CDLL(None).mallopt(-3, 256 << 10) == 1
# M_PERTURB, off: MALLOC_PERTURB_ of a test's environment has glibc write to all that it allocates.
assert ctypes.CDLL(None).mallopt(-6, 0) == 1
run(2, 64, sys.argv[1])
ctypes.CDLL(None).malloc_trim(0)
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = peak()
run(48, 512, sys.argv[1])
print(peak() - before)
"""


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Files(Case):
    def made(self, make, blocks=24):
        """A model in tiers, with other values each time."""
        place = tempfile.mkdtemp(dir=self.directory)
        with stepwell.torch.init(**tiers(place, blocks)) as made:
            model = make()
        self.addCleanup(made.close)
        made.offload(model)
        return model

    def path(self, name="saved"):
        return os.path.join(self.directory, name)

    def round_trip(self, **options):
        model = self.made(Custom)
        model.mean.mul_(3)
        stepwell.torch.save_safetensors(model, self.path(), **options)
        for other in (self.made(Custom), Custom()):
            self.assertEqual(stepwell.torch.load_safetensors(other, self.path()), ([], []))
            self.equal(values_of(other), values_of(model))
        return model

    def test_a_model_that_was_saved_is_loaded_with_equal_bits(self):
        model = self.round_trip()
        self.assertEqual(os.listdir(self.path()), ["model.safetensors"])
        if HAS_SAFETENSORS:
            found = safetensors.torch.load_file(self.path("saved/model.safetensors"))
            self.equal(dict(sorted(found.items())), dict(sorted(values_of(model).items())))

    def test_shards_and_slices_have_equal_bits(self):
        with unittest.mock.patch("stepwell.torch._files.PART_BYTES", 4096), \
                unittest.mock.patch("stepwell.torch._streams.PART_BYTES", 4096):
            self.round_trip(max_shard_bytes="100KiB")
        self.assertGreater(len(os.listdir(self.path())), 5)
        stepwell.torch.save_safetensors(Custom(), self.path())
        self.assertEqual(os.listdir(self.path()), ["model.safetensors"])

    @unittest.skipUnless(HAS_TRANSFORMERS, support.NO_TRANSFORMERS)
    def test_transformers_and_we_load_what_the_other_saved(self):
        for make in (gpt2, t5):
            for most in ("50GiB", "100KiB"):
                with self.subTest(make.__name__, most=most):
                    path = self.path(make.__name__ + most)
                    model = self.made(make, 48)
                    stepwell.torch.save_safetensors(model, path, max_shard_bytes=most)
                    model.config.save_pretrained(path)
                    theirs, told = type(model).from_pretrained(path, output_loading_info=True)
                    self.assertFalse(told["missing_keys"] or told["unexpected_keys"], told)
                    self.equal(values_of(theirs), values_of(model))
                    theirs = make()
                    theirs.save_pretrained(path + "-theirs", max_shard_size=most.replace("i", ""))
                    stepwell.torch.load_safetensors(model, path + "-theirs")
                    self.equal(values_of(model), values_of(theirs))

    def test_other_dtypes_are_converted_as_torch_converts(self):
        plain = nn.Linear(40, 30)
        stepwell.torch.save_safetensors(plain, self.path("a.safetensors"))
        half = self.made(lambda: nn.Linear(40, 30).bfloat16())
        stepwell.torch.load_safetensors(half, self.path("a.safetensors"))
        self.equal(values_of(half), values_of(copy.deepcopy(plain).bfloat16()))
        stepwell.torch.save_safetensors(half, self.path("b.safetensors"))
        stepwell.torch.load_safetensors(plain, self.path("b.safetensors"))
        self.equal(values_of(plain), values_of(copy.deepcopy(half).float()))

    def test_other_names_and_shapes_are_told_as_torch_tells_them(self):
        stepwell.torch.save_safetensors(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)),
                                        self.path())
        model = self.made(lambda: nn.ModuleDict({"0": nn.Linear(3, 4), "a": nn.Linear(2, 2)}))
        before = values_of(model)
        with self.assertRaises(RuntimeError) as ours:
            stepwell.torch.load_safetensors(model, self.path())
        with self.assertRaises(RuntimeError) as theirs:
            model.load_state_dict(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4)).state_dict())
        ours, theirs = (sorted(str(each.exception).replace(",", "").replace(".", "").split())
                        for each in (ours, theirs))
        self.assertEqual(ours, theirs)
        model.load_state_dict(before)
        self.assertEqual(stepwell.torch.load_safetensors(model, self.path(), strict=False),
                         (["a.weight", "a.bias"], ["1.bias", "1.weight"]))
        with self.assertRaisesRegex(RuntimeError, "size mismatch for weight: .*[4, 3].*[4, 4]"):
            stepwell.torch.save_safetensors(nn.Linear(4, 4), self.path())
            stepwell.torch.load_safetensors(nn.Linear(3, 4), self.path())
        with self.assertRaisesRegex(ValueError, "'weight' is on meta"):
            stepwell.torch.load_safetensors(nn.Linear(4, 4, device="meta"), self.path())

    def test_a_save_that_fails_leaves_what_was_there(self):
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        stepwell.torch.save_safetensors(model, self.path(), max_shard_bytes="17KiB")
        before, names = values_of(model), os.listdir(self.path())
        torch.nn.init.zeros_(model[0].weight)
        calls = []

        def fails(*arguments):
            calls.append(arguments)
            if len(calls) == 3:
                raise OSError("no room")
            return put(*arguments)
        put = stepwell.torch._streams.Writer.put
        with unittest.mock.patch("stepwell.torch._streams.Writer.put", fails):
            with self.assertRaisesRegex(OSError, "no room"):
                stepwell.torch.save_safetensors(model, self.path(), max_shard_bytes="17KiB")
        self.assertEqual(sorted(os.listdir(self.path())), sorted(names))
        stepwell.torch.load_safetensors(model, self.path())
        self.equal(values_of(model), before)

    def test_tensors_are_fetched_before_they_are_saved(self):
        model = self.made(lambda: nn.Sequential(*[nn.Linear(128, 128) for _ in range(30)]))
        tiers = stepwell.torch.offloaded(model)
        tiers.runtime.evict(tier="device")
        hints, reads = [], []

        def prefetch(items, *arguments):
            hints.append((items[0].tensor, len(reads)))
            return ahead(items, *arguments)
        ahead, copy_of = tiers.runtime.prefetch, stepwell.torch._files._copy
        with unittest.mock.patch.object(tiers.runtime, "prefetch", prefetch), \
                unittest.mock.patch("stepwell.torch._files._copy", lambda *arguments: (
                    reads.append(arguments[1].tensor), copy_of(*arguments))):
            stepwell.torch.save_safetensors(model, self.path())
        self.assertEqual(list(dict.fromkeys(tensor for tensor, _ in hints)),
                         list(dict.fromkeys(reads)))
        first = [at for _, at in hints[1:stepwell.torch._files._AHEAD]]
        self.assertGreater(len(first), 3)
        self.assertEqual(first, [0] * len(first))

    def test_files_are_written_where_nothing_passes_the_page_cache(self):
        refused = []

        def pwrite(descriptor, memory, at):
            if len(memory) % 4096 == 0 and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                refused.append(at)
                raise OSError(errno.EINVAL, "no O_DIRECT here")
            return plain(descriptor, memory, at)
        plain, model = os.pwrite, nn.Linear(512, 512)
        with unittest.mock.patch("os.pwrite", pwrite):
            stepwell.torch.save_safetensors(model, self.path())
        if not refused:
            self.skipTest("the build directory's file system has no O_DIRECT")
        other = nn.Linear(512, 512)
        stepwell.torch.load_safetensors(other, self.path())
        self.equal(values_of(other), values_of(model))

    def test_damaged_files_are_refused_by_name(self):
        model = nn.Linear(2, 2)
        path = self.path("a.safetensors")
        stepwell.torch.save_safetensors(model, path)
        with open(path, "rb") as file:
            whole = file.read()
        for words, damaged in (("no file of safetensors: it has 3 bytes", b"abc"),
                               ("no file of safetensors: it has", b"\xff" * 100),
                               ("header is damaged", whole.replace(b"_offsets", b"_0ffsets")),
                               ("header is damaged", whole[:8] + b"x" + whole[9:]),
                               ("a tensor of 16 bytes at", whole[:-4]),
                               ("a tensor of F33", whole.replace(b"F32", b"F33"))):
            with open(path, "wb") as file:
                file.write(damaged)
            with self.assertRaisesRegex(ValueError, "a.safetensors .*" + words):
                stepwell.torch.load_safetensors(model, path)
        with self.assertRaisesRegex(FileNotFoundError, "has neither model.safetensors nor"):
            stepwell.torch.load_safetensors(model, self.directory)

    @unittest.skipUnless(os.path.exists("/proc/self/clear_refs"), "no /proc/self/clear_refs")
    def test_a_model_beyond_memory_is_made_trained_saved_and_loaded_within_it(self):
        status, printed = support.run_program(GROWS, self.directory, timeout=200)
        self.assertEqual(status, 0, printed)
        grown = int(printed.split()[-1])
        # The device budget of 6 MiB, half of it again in adopted gradients, two weights of 1 MiB
        # on their way, and 13 for activations, threads and slices; the model has 48, and 96 with
        # gradients.
        self.assertLess(grown, 24 * support.MIB)

def trained(model, optimizer, scheduler, steps):
    for _ in range(steps):
        model(torch.randn(16, 64)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def run_of(kind, directory=None, **options):
    """(model, optimizer, scheduler) of a run, plain without a directory."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Dropout(0.1), nn.ReLU(),
                          nn.Linear(128, 64))
    model[4].bias.requires_grad_(False)
    groups = [{"params": model[0].parameters()},
              {"params": [*model[1].parameters(), *model[4].parameters()], "lr": 0.02}]
    optimizer = kind(groups)
    if directory:
        stepwell.torch.offload(model, optimizer, **tiers(directory, 32, **options))
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def kinds():
    """By a kernel, and by its own code, with small states too."""
    return {"adamw": lambda groups: torch.optim.AdamW(groups, 0.01),
            "rmsprop": lambda groups: torch.optim.RMSprop(groups, 0.01, momentum=0.9,
                                                          foreach=False)}


def all_of(model, optimizer):
    """Every bit of a run."""
    found = values_of(model)
    for at, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            found[f"{at} {name}"] = torch.as_tensor(value).clone()
    return found


# Trains two steps of each, commits, trains on and waits to be killed.
KILLED = """
import os, sys, time
import torch
import stepwell.torch
from test_offload_files import kinds, run_of, trained
torch.set_num_threads(2)
for name, kind in kinds().items():
    directory = os.path.join(sys.argv[1], name)
    model, optimizer, scheduler = run_of(kind, directory, store_name="run")
    trained(model, optimizer, scheduler, 2)
    stepwell.torch.offloaded(model).commit({
        "random": torch.get_rng_state(), "scheduler": scheduler.state_dict()})
    trained(model, optimizer, scheduler, 1)
print("committed", flush=True)
time.sleep(600)
"""


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Streams(Case):
    """The drive has work while the caller has: each waits here for what only a thread can do."""

    def test_the_next_pieces_are_read_while_the_caller_has_one(self):
        path = os.path.join(self.directory, "file")
        data = os.urandom(5 * 4096 + 100)
        with open(path, "wb") as file:
            file.write(data)
        begun, plain = threading.Semaphore(0), os.preadv

        def preadv(*arguments):
            begun.release()
            return plain(*arguments)
        with open(path, "rb") as file, unittest.mock.patch("os.preadv", preadv), \
                unittest.mock.patch("stepwell.torch._streams.PART_BYTES", 4096), \
                stepwell.torch._streams.Reader([
                    stepwell.torch._streams.Place(path, file.fileno(), at, len(data) - 200)
                    for at in (0, 200)]) as reader:
            pieces = iter(reader)
            found = bytes(next(pieces))
            for _ in range(stepwell.torch._streams.PARTS):
                self.assertTrue(begun.acquire(timeout=60))
            found += b"".join(bytes(piece) for piece in pieces)
        self.assertEqual(found, data[:-200] + data[200:])

    def test_what_is_not_in_the_page_cache_is_read_past_it(self):
        streams = stepwell.torch._streams
        path = os.path.join(self.directory, "file")
        data = os.urandom(9 * 4096 + 100)
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        past, plain = [], os.preadv

        def preadv(descriptor, *arguments):
            direct = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
            if direct and refused:
                raise OSError(errno.EINVAL, "other alignments")
            past.append(direct != 0)
            return plain(descriptor, *arguments)
        for at, size, cached, refused in ((0, len(data), False, False), (8, 4088, False, False),
                                          (4096 + 24, 20000, False, False), (0, 9, False, False),
                                          (len(data) - 4, 4, False, False), (3, 4096, True, False),
                                          (0, len(data), True, False), (8, 9000, False, True)):
            past.clear()
            with self.subTest(at=at, size=size), open(path, "rb") as file, \
                    unittest.mock.patch("os.preadv", preadv), \
                    unittest.mock.patch("stepwell.torch._streams.PART_BYTES", 8192), \
                    streams.Reader([streams.Place(path, file.fileno(), at, size)]) as reader:
                if max(reader._direct.values()) < 0:
                    self.skipTest("this file system has no O_DIRECT")
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                page = streams.Place(path, file.fileno(), 8192, 4096)
                if reader._is_cached(page):
                    self.skipTest("this file system keeps files in the page cache")
                if cached:
                    os.pread(file.fileno(), len(data), 0)
                found = b"".join(bytes(piece) for piece in reader)
                self.assertEqual(found, data[at:at + size])
                self.assertEqual(set(past), {not cached and not refused and at % 8 == 0})
                if set(past) == {True}:  # and nothing was read ahead
                    self.assertFalse(reader._is_cached(page))

    def test_its_memory_is_of_huge_pages(self):
        parts = stepwell.torch._streams._parts(1 << 30, spare=8192)
        begin = ctypes.addressof(ctypes.c_char.from_buffer(parts[0]))
        self.assertEqual(begin % (2 << 20), 0)
        flags, inside = "", False
        with open("/proc/self/smaps", encoding="ascii") as maps:
            for line in maps:
                words = line.split()
                if "-" in words[0]:
                    first, end = (int(word, 16) for word in words[0].split("-"))
                    inside = first <= begin < end
                elif inside and words[0] == "VmFlags:":
                    flags = words[1:]
        self.assertNotIn("sh", flags)  # shared memory has huge pages by another setting
        if not os.path.exists("/sys/kernel/mm/transparent_hugepage"):
            self.skipTest("this kernel has no transparent huge pages")
        self.assertIn("hg", flags)

    def test_a_file_is_written_while_the_caller_makes_more_of_it(self):
        path = os.path.join(self.directory, "file")
        data = os.urandom(5 * 4096 + 100)
        begun, plain = threading.Event(), os.pwrite

        def pwrite(*arguments):
            begun.set()
            return plain(*arguments)
        with unittest.mock.patch("os.pwrite", pwrite), \
                unittest.mock.patch("stepwell.torch._streams.PART_BYTES", 4096), \
                stepwell.torch._streams.Writer(path, len(data)) as writer:
            writer.put(data[:5000])
            self.assertTrue(begun.wait(60))
            writer.put(data[5000:])
        with open(path, "rb") as file:
            self.assertEqual(file.read(), data)

    def test_a_write_that_fails_is_the_callers_error(self):
        def pwrite(*_):
            raise OSError(errno.ENOSPC, "no room")
        with unittest.mock.patch("os.pwrite", pwrite), self.assertRaisesRegex(OSError, "no room"):
            with stepwell.torch._streams.Writer(os.path.join(self.directory, "file"), 9) as writer:
                writer.put(b"123456789")


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Commits(Case):
    def test_a_run_that_was_killed_goes_on_with_equal_bits(self):
        for name in kinds():
            os.mkdir(os.path.join(self.directory, name))
            os.mkdir(os.path.join(self.directory, name + "-whole"))
        child = subprocess.Popen([sys.executable, "-B", "-c", KILLED, self.directory],
                                 stdout=subprocess.PIPE, text=True, env=support.environment())
        with child:
            try:
                self.assertEqual(child.stdout.readline(), "committed\n")
            finally:
                child.send_signal(signal.SIGKILL)
        self.assertEqual(child.returncode, -signal.SIGKILL)
        for name, kind in kinds().items():
            with self.subTest(name):
                # The kernel of AdamW rounds as torch does not, so it is its own reference.
                whole = run_of(kind, name == "adamw" and os.path.join(
                    self.directory, name + "-whole"))
                trained(*whole, 4)
                model, optimizer, scheduler = run_of(
                    kind, os.path.join(self.directory, name), store_name="run", resume=True)
                with stepwell.torch.offloaded(model) as made:
                    self.assertEqual(made.generation, 1)
                    torch.set_rng_state(made.metadata["random"])
                    scheduler.load_state_dict(made.metadata["scheduler"])
                    trained(model, optimizer, scheduler, 2)
                    self.assertEqual(optimizer.param_groups[0]["lr"],
                                     whole[1].param_groups[0]["lr"])
                    self.equal(all_of(model, optimizer), all_of(*whole[:2]))
                    self.assertEqual(made.commit(), 2)
                if name == "adamw":
                    stepwell.torch.offloaded(whole[0]).close()

    def test_a_model_made_in_tiers_is_resumed(self):
        def run(**options):
            with stepwell.torch.init(**tiers(self.directory, store_name="run", **options)) as made:
                model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)])
            optimizer = torch.optim.Adagrad(model.parameters(), 0.1)
            made.offload(model, optimizer)
            return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 9)
        model, optimizer, scheduler = run(resume=True, overwrite=True)
        with stepwell.torch.offloaded(model) as made:
            self.assertEqual((made.generation, made.metadata), (0, None))
            trained(model, optimizer, scheduler, 1)
            made.commit([7, "a"], label="first")
            expected = all_of(model, optimizer)
            trained(model, optimizer, scheduler, 1)
        model, optimizer, scheduler = run(resume=True, overwrite=True)
        with stepwell.torch.offloaded(model) as made:
            self.assertEqual((made.generation, made.metadata), (1, [7, "a"]))
            self.assertEqual(made.runtime.generation().label, "first")
            self.equal(all_of(model, optimizer), expected)
            self.assertTrue(all("#" not in tensor.name for tensor in made.runtime))

    def test_the_default_of_nvme_bytes_has_room_for_generations(self):
        def run(resume):
            model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(6)], nn.BatchNorm1d(64))
            optimizer = torch.optim.Adam(model.parameters(), 0.1)
            return stepwell.torch.offload(
                model, optimizer, device_bytes=24 * BLOCK, block_bytes=BLOCK, thread_count=2,
                nvme=stepwell.Nvme(self.directory, stepwell.torch._making.need(
                    model, list(model.named_parameters()), optimizer, BLOCK, 3),
                    driver_options="allow_tmpfs=1"), store_name="run", resume=resume)
        model, optimizer = run(False)
        with stepwell.torch.offloaded(model) as made:
            for _ in range(4):
                model(torch.randn(16, 64)).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                made.commit()
        model, _ = run(True)
        self.assertEqual(stepwell.torch.offloaded(model).generation, 4)
        stepwell.torch.offloaded(model).close()

    def test_of_what_is_frozen_there_is_one_copy_until_it_is_written(self):
        def run(resume, name="tight", more=0):
            torch.manual_seed(2)
            model = nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(6)])
            model[:5].requires_grad_(False)
            optimizer = torch.optim.Adam(model.parameters(), 0.1)
            need = stepwell.torch._making.need(
                model, list(model.named_parameters()), optimizer, BLOCK, 3)
            stepwell.torch.offload(
                model, optimizer, device_bytes=24 * BLOCK, block_bytes=BLOCK, thread_count=2,
                nvme=stepwell.Nvme(self.directory, need + more, driver_options="allow_tmpfs=1"),
                store_name=name, resume=resume, overwrite=True)
            return model, optimizer, stepwell.torch.offloaded(model), need

        def step(model, optimizer):
            model(torch.ones(1, 256)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        model, optimizer, made, need = run(False)
        # 5 x 4 blocks of what is frozen, 4 x (1 + 3 x 3) of what is trained, and the store's own.
        self.assertLess(need, (5 * 4 + 4 * 10 + 140) * BLOCK)
        stepwell.torch.save_safetensors(model, self.directory + "/saved")
        stepwell.torch.load_safetensors(model, self.directory + "/saved")
        for _ in range(3):
            step(model, optimizer)
            made.commit()
        before = values_of(model)
        with torch.no_grad(), self.assertRaisesRegex(stepwell.BudgetError, "promise room"):
            for parameter in model.parameters():
                parameter.mul_(2)
        made.close()

        model, optimizer, made, _ = run(True)
        self.equal(values_of(model), before)
        made.close()
        model, optimizer, made, _ = run(False, "wide", 64 * BLOCK)
        made.commit()
        with torch.no_grad():
            model[0].weight.mul_(2)
        model[1].weight.data = torch.ones(256, 256)
        model[2].weight.requires_grad_(True)
        step(model, optimizer)
        stepwell.torch.load_safetensors(model, self.directory + "/saved")
        made.commit()
        after = values_of(model)
        made.close()
        model, _, made, _ = run(True, "wide", 64 * BLOCK)
        self.equal(values_of(model), after)
        made.close()

    def test_what_a_generation_cannot_keep_or_give_is_refused(self):
        model, optimizer, _ = run_of(kinds()["adamw"], self.directory, store_name="run")
        with stepwell.torch.offloaded(model) as made:
            with self.assertRaisesRegex(TypeError, "weights_only"):
                made.commit(self.directory.__class__.__mro__[0].__len__)
            made.commit()
        with self.assertRaisesRegex(ValueError, "of AdamW with groups of .2, 4. parameters, and "
                                    "the optimizer is RMSprop"):
            run_of(kinds()["rmsprop"], self.directory, store_name="run", resume=True)
        model, _, _ = run_of(kinds()["adamw"], self.directory)
        with stepwell.torch.offloaded(model) as made:
            with self.assertRaisesRegex(ValueError, "give .* a store_name"):
                made.commit()


if __name__ == "__main__":
    support.main()
