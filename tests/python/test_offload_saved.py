# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch: names, extra states, ties and writes of what a program saves and resumes.

Skipped where PyTorch is not installed.
"""
import copy
import importlib.util
import io
import itertools
import os
import pickle
import tempfile
import unittest
import warnings

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch
HAS_TRANSFORMERS = HAS_TORCH and importlib.util.find_spec("transformers") is not None
HAS_PEFT = HAS_TRANSFORMERS and importlib.util.find_spec("peft") is not None

BLOCK = support.BLOCK


def mlp(seed=0, layers=3):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(32, 32) for _ in range(layers)), nn.BatchNorm1d(32))


def adam(model):
    return torch.optim.AdamW(model.parameters(), 1e-2)


def steps(model, optimizer, n=2):
    for _ in range(n):
        model(torch.ones(4, 32).cumsum(0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def listed(value):
    """The same with lists for tensors, whatever their device."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, list) else value


def values(model):
    return [value.detach().clone() for value in [*model.parameters(), *model.buffers()]]


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-saved-", dir=".")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        if HAS_TORCH:
            torch.set_num_threads(1)

    def offload(self, model, optimizer=None, blocks=48, **options):
        if "init" in options:
            return options.pop("init").offload(model, optimizer, **options)
        stepwell.torch.offload(
            model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK, thread_count=2,
            nvme=stepwell.Nvme(self.directory, (1 << 20) + 1024 * BLOCK,
                               driver_options="allow_tmpfs=1"), **options)
        made = stepwell.torch.offloaded(model)
        self.addCleanup(made.close)
        return made

    def equal(self, ours, others):
        self.assertEqual(len(ours), len(others))
        for one, other in zip(ours, others):
            self.assertTrue(torch.equal(one, other))


if HAS_TORCH:
    class Holder(nn.Module):
        """Holds a model like DistributedDataParallel, under any name."""

        def __init__(self, model, name="module"):
            super().__init__()
            setattr(self, name, model)
            self.inner = [model]

        def forward(self, x):
            return self.inner[0](x)

    class Scaled(nn.Linear):
        """Its extra state is a tensor, small or large, or a dict."""

        scale = 1.0
        kind = "small"

        def get_extra_state(self):
            if self.kind == "dict":
                return {"scale": self.scale}
            return torch.full((2000 if self.kind == "large" else 1,), self.scale)

        def set_extra_state(self, state):
            self.scale = float(state["scale"] if isinstance(state, dict) else state[-1])


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Names(Case):
    def committed(self, wrap=lambda model: model):
        """A run of two steps and a commit; two more steps give the values expected of others."""
        model = wrap(mlp())
        optimizer = adam(model)
        with self.offload(model, optimizer, store_name="run", overwrite=True) as made:
            steps(model, optimizer)
            made.commit({"step": 2})
            steps(model, optimizer)
            return values(model)

    def test_a_model_that_is_wrapped_is_resumed_and_so_is_one_that_no_longer_is(self):
        wraps = {
            "plain": lambda model: model,
            "compiled": lambda model: torch.compile(model, backend="eager"),
            "DDP's name": Holder,
            "compiled in it": lambda model: Holder(torch.compile(model, backend="eager")),
            "Lightning's name": lambda model: Holder(model, "model"),
        }
        for (first, one), (then, other) in zip(wraps.items(), [*wraps.items()][1:] + [
                *wraps.items()][:1]):
            with self.subTest(f"{first}, then {then}"):
                expected = self.committed(one)
                model = other(mlp(seed=1))
                optimizer = adam(model)
                with self.offload(model, optimizer, store_name="run", resume=True) as made:
                    steps(model, optimizer)
                    self.equal(values(model), expected)
                    made.commit({"step": 4})
                model = one(mlp(seed=1))
                with self.offload(model, adam(model), store_name="run", resume=True) as made:
                    self.assertEqual(made.metadata, {"step": 4})
                    self.equal(values(model), expected)

    def test_views_of_frozen_parameters_in_a_store_are_written_to(self):
        writes = {
            "detach": lambda p: p.detach().mul_(2),
            "a row": lambda p: p[0].zero_(),
            "a view": lambda p: p.view(-1)[3:].add_(1),
            "itself after": lambda p: (p.detach(), p.mul_(2)),
        }
        for name, write in writes.items():
            for blocks in 12, 48:
                with self.subTest(name, blocks=blocks):
                    plain, model = mlp(), mlp()
                    for each in plain, model:
                        each[0].requires_grad_(False)
                    with self.offload(model, adam(model), blocks, store_name="run",
                                      overwrite=True) as made:
                        for step in range(2):
                            for each in plain, model:
                                with torch.no_grad():
                                    write(each[0].weight)
                            self.equal(values(model), values(plain))
                            if step == 0:
                                made.commit()

    def test_states_of_frozen_parameters_are_kept_in_generations(self):
        kinds = torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop
        for kind, trained in itertools.product(kinds, (False, True)):
            with self.subTest(f"{kind.__name__}, {'trained' if trained else 'not'} before"):
                plain = mlp(), mlp()
                models = mlp(), mlp(seed=1)
                made = [kind(model.parameters(), 0.01) for model in (*plain, *models)]
                for model, optimizer in ((plain[0], made[0]), (models[0], made[2])):
                    if trained:
                        steps(model, optimizer)
                    model[0].requires_grad_(False)
                for model in plain[1], models[1]:
                    model[0].requires_grad_(trained)
                with self.offload(models[0], made[2], store_name="run", overwrite=True) as first:
                    steps(models[0], made[2])
                    first.commit()
                steps(plain[0], made[0])
                with self.offload(models[1], made[3], store_name="run", resume=True):
                    steps(models[1], made[3])
                    saved = made[3].state_dict()["state"]
                plain[1].load_state_dict(plain[0].state_dict())
                made[1].load_state_dict(made[0].state_dict())
                steps(plain[1], made[1])
                self.equal(values(models[1]), values(plain[1]))
                for number, state in made[1].state_dict()["state"].items():
                    for name, value in state.items():
                        self.assertTrue(torch.equal(saved[number][name], value), (number, name))

    def test_names_that_do_not_match_are_refused_and_both_sides_named(self):
        self.committed()

        class Other(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down, self.last, self.norm = mlp(seed=1)

        class Twice(nn.Module):
            def __init__(self):
                super().__init__()
                self.module, self.other = mlp(), mlp()
        for model, words in ((Other(), "'0.weight' and 10 more that the model has not, and the "
                                       "model has 'up.weight' and 10 more that the generation"),
                             (Twice(), "has nothing that the model has not, and the model has"),
                             (mlp()[:3], "has '3.weight' and 4 more that the model has not, and "
                                    "the model has nothing that")):
            with self.assertRaisesRegex(ValueError, words):
                self.offload(model, store_name="run", resume=True)
        with self.assertRaisesRegex(ValueError, "up.weight"):  # nothing would be resumed
            self.offload(Other(), store_name="run", resume=True, strict=False)
        model = mlp(seed=1)
        with self.offload(model, store_name="run", resume=True) as made:  # nothing was lost
            self.assertEqual(made.generation, 1)

    def test_strict_false_resumes_what_matches_and_leaves_the_rest_out(self):
        self.committed()
        first, model = mlp(), nn.ModuleDict({"module": mlp(seed=1), "head": nn.Linear(32, 2)})
        head = model.head.weight.detach().clone()
        with self.offload(first, store_name="run", resume=True):
            expected = values(first)
        model.module[1] = nn.Identity()
        with self.offload(model, store_name="run", resume=True, strict=False) as made:
            self.equal(list(model.module[0].parameters()), expected[:2])
            self.equal(list(model.module[2].parameters()), expected[4:6])
            self.assertTrue(torch.equal(model.head.weight, head))
            made.commit()
            self.assertEqual(made.runtime.generation().left_out, 2 + 16)

    def test_a_commit_that_would_lose_states_is_refused(self):
        self.committed()
        model = mlp(seed=1)
        with self.offload(model, store_name="run", resume=True) as made:
            with self.assertRaisesRegex(ValueError, "has the states of AdamW, and the next one"):
                made.commit()
        for at, resume in (slice(1, None), False), (slice(-1), True):  # as many, but others
            model = mlp()
            optimizer = torch.optim.AdamW(list(model.parameters())[at])
            with self.offload(model, optimizer, store_name="less", resume=resume) as made:
                if not resume:
                    steps(model, optimizer)
                    made.commit()
                    continue
                with self.assertRaisesRegex(stepwell.NotFoundError, "'optimizer.3.bias.exp_avg' "
                                            "of generation 1, .* was not made again"):
                    made.commit()

    def test_a_buffer_is_resumed_under_another_prefix(self):
        model = mlp()
        with self.offload(model, store_name="run") as made:
            model(torch.randn(8, 32))
            mean = model[3].running_mean.clone()
            made.commit()
        model = Holder(mlp())
        with self.offload(model, store_name="run", resume=True):
            self.assertTrue(torch.equal(model.module[3].running_mean, mean))

    @unittest.skipUnless(HAS_PEFT, "peft is not installed (./dev test long)")
    def test_a_base_is_resumed_in_a_model_of_peft(self):
        import peft
        self.committed()
        plain = mlp()
        with self.offload(plain, store_name="run", resume=True):
            expected = values(plain)

        def adapted():
            return peft.get_peft_model(mlp(seed=1), peft.LoraConfig(target_modules=["1"], r=2))
        with self.assertRaisesRegex(ValueError, "lora_A.default.weight' and 1 more that the gen"):
            self.offload(adapted(), store_name="run", resume=True)
        model = adapted()
        with self.offload(model, store_name="run", resume=True, strict=False):
            base = model.base_model.model
            self.equal(list(base[0].parameters()) + list(base[1].base_layer.parameters()),
                       expected[:4])


if HAS_TORCH:
    class Counting(torch.optim.SGD):
        """Has a count under a key that is no parameter."""

        def step(self, closure=None):
            self.state["all"]["n"] = self.state["all"].get("n", 0) + 1
            self.param_groups[0]["lr"] = .1 / self.state["all"]["n"]
            return super().step(closure)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Resumed(Case):
    """A generation has all that a file of torch has, or says what does not fit."""

    def commit(self, model, optimizer=None):
        made = self.offload(model, optimizer, store_name="s", overwrite=True)
        if optimizer is not None:
            steps(model, optimizer)
        yield
        made.commit()
        made.close()

    def test_entries_of_the_optimizers_state_that_no_kernel_has(self):
        def large(model, optimizer):
            optimizer.state[model[0].weight]["ema"] = model[0].weight.detach().clone() * 2
            optimizer.state[model[1].bias]["note"] = {"seen": [1, 2.5]}
            optimizer.state["epoch"] = {"n": 3, "mean": torch.ones(2, 2)}
        for kind, edit in ((Counting, lambda *_: None), (torch.optim.AdamW, large),
                           (torch.optim.RMSprop, large)):
            with self.subTest(kind):
                model = mlp()
                optimizer = kind(model.parameters(), lr=.1)
                for _ in self.commit(model, optimizer):
                    edit(model, optimizer)
                    kept = copy.deepcopy(optimizer.state_dict())
                steps(model, optimizer)
                expected = values(model)
                model = mlp(1)
                optimizer = kind(model.parameters(), lr=.1)
                self.offload(model, optimizer, store_name="s", resume=True)
                found = optimizer.state_dict()
                self.assertEqual(list(found["state"]), list(kept["state"]))
                self.assertEqual(listed(found), listed(kept))
                steps(model, optimizer)
                self.equal(values(model), expected)
                stepwell.torch.offloaded(model).close()

    def test_an_error_leaves_the_model_as_it_was(self):
        for _ in self.commit(mlp(), None):
            pass
        model = mlp()
        for _ in self.commit(model, adam(model)):
            pass
        other = mlp(1)
        before = values(other)
        with self.assertRaisesRegex(ValueError, "has states of AdamW .* the optimizer is SGD"):
            self.offload(other, torch.optim.SGD(other.parameters(), .1), store_name="s",
                         resume=True)
        self.equal(values(other), before)

    def test_an_offload_without_room_gives_gradients_back(self):
        model = nn.Sequential(*(nn.Linear(160, 160) for _ in range(4)))
        model(torch.ones(2, 160)).sum().backward()
        grads = [p.grad.clone() for p in model.parameters()]
        with self.assertRaises(stepwell.BudgetError):
            stepwell.torch.offload(model, adam(model), device_bytes=12 * BLOCK, block_bytes=BLOCK,
                                   nvme=self.directory, nvme_bytes=26 * BLOCK)
        self.equal([p.grad for p in model.parameters()], grads)

    def test_strict_false_leaves_out_states_of_layers_that_are_not_there(self):
        model = mlp()[:3]
        for _ in self.commit(model, adam(model)):
            pass
        expected = values(model[0])
        for count in 2, 4:
            other = mlp(1, count)[:count]
            optimizer = adam(other)
            made = self.offload(other, optimizer, store_name="s", resume=True, strict=False)
            self.equal(values(other[0]), expected)
            self.assertEqual(optimizer.state[other[0].weight]["step"].item(), 2)
            steps(other, optimizer)
            made.close()

    def test_a_gradient_that_was_used_up_does_not_hinder_another_offload(self):
        for blocks in 10, 512:
            model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(8)))
            optimizer = adam(model)
            made = self.offload(model, optimizer, blocks=10)
            model(torch.ones(4, 128)).square().mean().backward()
            optimizer.step()
            made.close()
            made = self.offload(model, optimizer, blocks=blocks)
            with self.assertRaisesRegex(RuntimeError, "consumed by the update"):
                model[0].weight.grad.norm()
            model[0].weight.grad.zero_()
            self.assertEqual(model[0].weight.grad.sum().item(), 0)
            optimizer.zero_grad()
            model(torch.ones(4, 128)).square().mean().backward()
            optimizer.step()
            made.close()

    def test_a_buffer_is_converted_as_torch_does_or_refused(self):
        def made(dtype, shape):
            model = nn.Linear(8, 8)
            model.register_buffer("b", torch.arange(6).reshape(shape).to(dtype))
            return model

        for _ in self.commit(made(torch.float16, (2, 3))):
            pass
        for dtype in torch.bfloat16, torch.int16, torch.float64:
            model = made(dtype, (2, 3))
            model.b.zero_()
            self.offload(model, store_name="s", resume=True).close()
            self.equal([model.b], [torch.arange(6).reshape(2, 3).to(dtype)])
        with self.assertRaisesRegex(ValueError, r"'b' of \(3, 2\) is \(2, 3\) in generation 1"):
            self.offload(made(torch.float16, (3, 2)), store_name="s", resume=True)

    def test_another_order_in_memory_or_shape_is_refused(self):
        def made(shape, layout=torch.contiguous_format):
            return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(*shape)).to(memory_format=layout)

        for _ in self.commit(made((8, 16))):
            pass
        for other, text in (
                (made((8, 16), torch.channels_last), r"'0.weight' .* strides \(27, 1, 9, 3\) is"),
                (made((16, 8)), r"'1.weight' of \(8, 16\) .* is \(16, 8\)")):
            with self.assertRaisesRegex(ValueError, text + ".* as it was made"):
                self.offload(other, store_name="s", resume=True)
        self.offload(made((8, 16)), store_name="s", resume=True)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class ExtraStates(Case):
    def model(self, kind):
        model = nn.Sequential(Scaled(16, 16), nn.Sequential(Scaled(16, 16)))
        model[0].kind = model[1][0].kind = kind
        return model

    def test_they_are_in_generations(self):
        for kind in "small", "large", "dict":
            with self.subTest(kind):
                model = self.model(kind)
                with self.offload(model, store_name=kind) as made:
                    made.commit()
                    model[0].scale, model[1][0].scale = 7.0, 8.0
                    made.commit()
                model = Holder(self.model(kind))
                with self.offload(model, store_name=kind, resume=True) as made:
                    self.assertEqual((model.module[0].scale, model.module[1][0].scale), (7.0, 8.0))
                    made.commit()
                    self.assertEqual(made.runtime.generation().left_out, 0)
                need = [stepwell.torch._making.need(made, list(made.named_parameters()), None,
                                                    BLOCK, 3) for made in
                        (self.model("dict"), self.model(kind))]
                self.assertEqual(need[1] - need[0], 0 if kind == "dict" else 6 * (BLOCK + 3 * 512))
                with self.assertRaisesRegex(ValueError, "'0._extra_state' and 1 more that the mod"):
                    self.offload(nn.Sequential(nn.Linear(16, 16), nn.Sequential(
                        nn.Linear(16, 16))), store_name=kind, resume=True)

    def test_one_that_a_generation_cannot_keep_is_refused(self):
        class Odd(nn.Linear):
            def get_extra_state(self):
                return Case
        with self.offload(Odd(4, 4), store_name="run") as made:
            with self.assertRaisesRegex(TypeError, "extra state of a module"):
                made.commit()

    def test_they_are_in_files_of_safetensors_if_they_are_tensors(self):
        for kind in "small", "large":
            model, path = self.model(kind), os.path.join(self.directory, kind)
            self.offload(model)
            model[0].scale, model[1][0].scale = 7.0, 8.0
            stepwell.torch.save_safetensors(model, path)
            again = self.model("small")
            self.offload(again)
            self.assertEqual(stepwell.torch.load_safetensors(again, path), ([], []))
            self.assertEqual((again[0].scale, again[1][0].scale), (7.0, 8.0))
        other = self.model("dict")
        with self.assertRaisesRegex(ValueError, "'0._extra_state' of .* is a dict"):
            stepwell.torch.save_safetensors(other, path)
        plain = nn.Sequential(nn.Linear(16, 16), nn.Sequential(nn.Linear(16, 16)))
        stepwell.torch.save_safetensors(plain, path)
        with self.assertRaisesRegex(RuntimeError, 'Missing key.* "0._extra_state"'):
            stepwell.torch.load_safetensors(other, path)
        missing, _ = stepwell.torch.load_safetensors(other, path, strict=False)
        self.assertEqual(missing, ["0._extra_state", "1.0._extra_state"])
        self.equal(list(other.parameters()), list(plain.parameters()))

    def test_an_entry_that_a_hook_makes_is_not_read_into(self):
        def doubled(module, state, prefix, _):
            state[prefix + "weight"] = state[prefix + "weight"].detach() * 2
        model = nn.Linear(4, 4)
        model.register_state_dict_post_hook(doubled)
        path = os.path.join(self.directory, "made.safetensors")
        stepwell.torch.save_safetensors(model, path)
        with self.assertRaisesRegex(ValueError, "'weight' of the model's state is made for"):
            stepwell.torch.load_safetensors(model, path)


def tied():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100, 32), nn.Sequential(nn.Linear(32, 32)),
                          nn.Linear(32, 100, bias=False))
    model[2].weight = model[0].weight
    model[1].register_buffer("count", torch.ones(3))
    return model


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Entries(Case):
    def test_tied_weights_are_saved_once_and_stay_tied(self):
        def saved(model):
            file = io.BytesIO()
            torch.save(model.state_dict(), file)
            return file
        plain, model = saved(tied()), tied()
        self.offload(model)
        holder = nn.ModuleDict({"module": model})
        for ours in saved(model), saved(holder.module):
            self.assertLess(ours.tell(), 1.05 * plain.tell())
            ours.seek(0)
            loaded = torch.load(ours)
            self.assertEqual({type(value) for value in loaded.values()}, {torch.Tensor})
            self.assertEqual(loaded["0.weight"].data_ptr(), loaded["2.weight"].data_ptr())
        for copied in copy.deepcopy(model.state_dict()), holder.state_dict(prefix="a."):
            one, other = (copied[name] for name in copied if "1" not in name)
            self.assertEqual(one.untyped_storage().data_ptr(), other.untyped_storage().data_ptr())

    @unittest.skipUnless(HAS_TRANSFORMERS, support.NO_TRANSFORMERS)
    def test_save_pretrained_writes_a_tied_weight_once(self):
        import transformers

        def saved(name, offload):
            torch.manual_seed(0)
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
                vocab_size=512, n_positions=8, n_embd=32, n_layer=1, n_head=2,
                bos_token_id=0, eos_token_id=0))
            if offload:
                self.offload(model)
            model.save_pretrained(os.path.join(self.directory, name))
            with open(os.path.join(self.directory, name, "model.safetensors"), "rb") as file:
                return file.read()
        self.assertEqual(saved("ours", True), saved("plain", False))

    def test_writes_to_entries_are_writes_to_the_model(self):
        def out(value):
            torch.add(value, 1, out=value)

        def item(value):
            value[0] = 3

        def held(value):
            value.mul_(2)
            value[1:].add_(1)

        def whole(value):
            value.copy_(torch.ones_like(value))

        ways = {
            "mul_": lambda value: value.mul_(0.5), "+=": lambda value: value.__iadd__(1),
            "out=": out, "[0]": item, "a view": lambda value: value[0].zero_(), "twice": held,
            "data": lambda value: value.data.add_(1), "copy_": whole,
            "detach, view": lambda value: value.detach().view(-1)[3:5].fill_(2),
            "t": lambda value: value.t().div_(3), "unbind": lambda value: list(value)[0].neg_(),
            "chunk": lambda value: value.chunk(2)[1].exp_(), "lerp_": lambda value: value.lerp_(
                torch.ones(value.shape, dtype=value.dtype), 0.25),
            "foreach": lambda value: torch._foreach_mul_([value, torch.ones(2)], 0.5),
            "init": lambda value: nn.init.constant_(value, 0.25),
            "index_add_": lambda value: value.index_add_(0, torch.tensor([1]), value[:1].clone()),
            "expanded": lambda value: value.view_as(value).masked_fill_(value > 0, 1),
            "optimizer": lambda value: self.updated(nn.Parameter(value)),
        }

        def run(model, way, inference=False):
            with torch.inference_mode() if inference else torch.no_grad():
                state = model.state_dict()
            for name, value in state.items():
                if value.dim() == 2:
                    ways[way](value)
            return values(model)
        for blocks, dtype in (48, torch.float32), (48, torch.bfloat16), (5, torch.float32):
            def made():
                torch.manual_seed(0)
                width = 512 if blocks == 5 else 32
                return nn.Sequential(nn.Linear(width, 160), nn.Linear(160, 32)).to(dtype)
            expected = {way: run(made(), way) for way in ways}
            model = made()
            start = copy.deepcopy(model.state_dict())
            records = self.offload(model, blocks=blocks).records
            model[0].weight.data_ptr()  # which the program may keep
            # In tiles, with blocks of 64 KiB.
            self.assertEqual(any(record.large for record in records),
                             blocks == 5 and support.DEVICE == "cpu")
            for way in ways:
                for pinned in False, True:
                    with self.subTest(way, blocks=blocks, dtype=dtype, pinned=pinned):
                        model.load_state_dict(start)
                        address = model[0].weight.data_ptr() if pinned else None
                        self.equal(run(model, way, not pinned), expected[way])
                        del address

    def updated(self, parameter):
        parameter.grad = torch.ones_like(parameter)
        torch.optim.AdamW([parameter], 0.1).step()

    def test_an_old_entry_has_the_present_values_and_is_written_through(self):
        def run(model, optimizer, close):
            found = []

            def trained():
                steps(model, optimizer, 1)

            def written():
                with torch.no_grad():
                    model[0].weight.mul_(2)

            def pinned():
                address = model[0].weight.data_ptr()
                written()
                del address

            def loaded():
                model.load_state_dict(mlp(seed=2).state_dict())

            for change in trained, written, pinned, loaded, close, written:
                state = model.state_dict()
                entry, view = state["0.weight"], state["0.weight"].t()[:3]
                change()
                found += [entry.clone(), pickle.loads(pickle.dumps(view)),
                          torch.tensor(entry.tolist())]
                entry[0].zero_()
                found.append(model[0].weight.detach().clone())
                model.load_state_dict(state)  # nothing, as all of it is the model's
                found.append(model[0].weight.detach().clone())
            return found

        for blocks in 48, 5:
            with self.subTest(blocks=blocks):
                plain = mlp()
                expected = run(plain, adam(plain), lambda: None)
                model = mlp()
                optimizer = adam(model)
                made = self.offload(model, optimizer, blocks=blocks)
                for ours, theirs in zip(run(model, optimizer, made.close), expected, strict=True):
                    self.assertTrue(torch.equal(ours, theirs))

    def test_an_entry_follows_writes_that_no_count_shows(self):
        def run(model, optimizer, close):
            entry, found = model.state_dict()["0.weight"], []
            for _ in range(2):
                for write in (lambda: model[0].weight.data.mul_(2),
                              lambda: nn.init.ones_(model[0].weight.data),
                              lambda: model[0].weight.detach()[1:].numpy().__imul__(3)):
                    write()
                    found.append(entry.clone())
                    entry.add_(1)
                    found.append(model[0].weight.detach().clone())
                close()
            return found
        plain = mlp()
        expected = run(plain, None, lambda: None)
        for blocks in 48, 256:
            with self.subTest(blocks=blocks):
                model = mlp()
                made = self.offload(model, blocks=blocks)
                for ours, theirs in zip(run(model, None, made.close), expected, strict=True):
                    self.assertTrue(torch.equal(ours, theirs))

    def test_a_graph_over_an_entry_ends_with_a_change_of_the_parameter(self):
        model = mlp()
        optimizer = adam(model)
        self.offload(model, optimizer)
        x = torch.ones(4, 32, requires_grad=True)
        for changes in False, True:
            loss = nn.functional.linear(x, model.state_dict()["0.weight"]).sum()
            if not changes:
                loss.backward()
                continue
            steps(model, optimizer, 1)
            with self.assertRaisesRegex(RuntimeError, "has been modified: parameter '0.weight'"):
                loss.backward()

    def test_an_entry_lies_in_memory_of_its_own(self):
        model = mlp()
        self.offload(model)
        address = model[0].weight.data_ptr()
        self.assertNotEqual(model.state_dict()["0.weight"].data_ptr(), address)

    def test_all_else_takes_entries_as_plain_tensors(self):
        model = mlp()
        right = copy.deepcopy(model)
        self.offload(model)
        state = model.state_dict()
        other = mlp(seed=1)
        other.load_state_dict(state)
        self.equal(values(other), values(right))
        model.load_state_dict(state)
        self.equal(values(model), values(right))
        entry, plain = model.state_dict()["0.weight"], right.state_dict()["0.weight"]
        for made in entry.clone(), entry + 1, entry.double(), copy.deepcopy(entry), pickle.loads(
                pickle.dumps(entry)):
            self.assertIs(type(made), torch.Tensor)
        self.assertIs(type(copy.deepcopy(nn.Parameter(entry))), nn.Parameter)
        self.assertIs(entry.to(support.DEVICE), entry)
        self.assertEqual(entry.tolist(), plain.tolist())
        self.assertEqual(repr(entry), repr(plain))
        self.assertTrue(torch.equal(entry + model[0].weight, 2 * plain))
        with torch.no_grad():
            entry.copy_(model[1].weight)
        self.assertTrue(torch.equal(model[0].weight, right[1].weight))
        entry.copy_(plain)
        x = torch.ones(4, 32, requires_grad=True)
        ours = torch.func.functional_call(right, state, (x,))
        self.assertTrue(torch.equal(ours, right(x)))
        ours.sum().backward()
        try:
            import numpy
        except ImportError:
            return
        if support.DEVICE != "cpu":
            return
        for array in entry.numpy(), numpy.asarray(entry), entry[1:].numpy():
            with self.assertRaisesRegex(ValueError, "read-only"):
                array[0] = 1
        self.assertTrue((numpy.asarray(entry, dtype="f8") == plain.double().numpy()).all())
        with self.assertRaisesRegex(BufferError, "export a clone"):
            torch.from_dlpack(entry)

    @unittest.skipUnless(support.DEVICE == "cpu", "only a tensor on the CPU becomes an array")
    def test_an_array_over_an_entry_follows_the_parameter_as_in_plain_torch(self):
        found = []
        for tiers in False, True:
            model = tied()
            optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
            if tiers:
                self.offload(model, optimizer)
            arrays = [entry.numpy() for entry in model.state_dict().values()]
            first = arrays[0][1:]
            seen = [[each.copy() for each in (*arrays, first)]]

            @torch.no_grad()
            def write(grad):
                model[1][0].bias.add_(1)
                torch.add(model[1][0].bias, 1, out=model[1][0].bias)
            model[0].weight.register_hook(write)
            for step in range(2):
                model(torch.full((4,), step + 1)).square().sum().backward()
                seen.append([each.copy() for each in (*arrays, first)])
                optimizer.step()
                seen.append([each.copy() for each in (*arrays, first)])
                optimizer.zero_grad()
            with torch.no_grad():
                model[0].weight.mul_(2)
            seen.append([each.copy() for each in (*arrays, first)])
            model.load_state_dict(tied().state_dict())
            seen.append([each.copy() for each in (*arrays, first)])
            found.append(seen)
            del arrays, first
            if tiers:
                self.assertEqual(stepwell.torch.offloaded(model).lent, {})
        for plain, ours in zip(*found):
            for one, other in zip(plain, ours):
                self.assertTrue((one == other).all())
        self.assertFalse((found[0][2][0] == found[0][0][0]).all())

    def test_a_checkpoint_of_torch_is_loaded_into_the_entries(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_model_state_dict
        model, other = tied(), tied()
        with torch.no_grad():
            other[0].weight.fill_(2)
        self.offload(model)
        for get in nn.Module.state_dict, get_model_state_dict:
            for source in other, model:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    dcp.save({"model": get(source)}, checkpoint_id=self.directory + "/dcp")
                    with torch.no_grad():
                        model[1][0].weight.fill_(3)
                        model[0].weight.fill_(3)
                    dcp.load({"model": get(model)}, checkpoint_id=self.directory + "/dcp")
                self.equal(values(model), values(other))

    def test_collectives_over_entries_are_refused(self):
        import torch.distributed as dist
        model = mlp()
        self.offload(model)
        dist.init_process_group("gloo", rank=0, world_size=1, init_method="file://"
                                + os.path.abspath(self.directory) + "/group")
        self.addCleanup(dist.destroy_process_group)
        with self.assertRaisesRegex(RuntimeError, "broadcast.* are copies"):
            dist.broadcast(model.state_dict()["0.weight"], 0)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Rooms(Case):
    def model(self, trained=1, layers=8):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(layers)))
        model.requires_grad_(False)
        model[layers - trained:].requires_grad_(True)
        return model

    def begin(self, model, kind=None, **options):
        """offload() in 24 blocks, with the default of nvme_bytes."""
        optimizer = (kind or torch.optim.AdamW)(model.parameters(), 1e-3)
        options = {"device_bytes": 24 * BLOCK, "block_bytes": BLOCK, "thread_count": 2,
                   "nvme": self.directory, **options}
        stepwell.torch.offload(model, optimizer, **options)
        self.addCleanup(stepwell.torch.offloaded(model).close)
        return optimizer

    def unfreeze(self, model, optimizer):
        for layer in reversed(model):
            layer.requires_grad_(True)
            model(torch.ones(2, 192)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return list(model.parameters())

    def rmsprop(self, parameters, lr):
        return torch.optim.RMSprop(parameters, lr, momentum=0.9, centered=True, foreach=False)

    def test_layers_that_are_unfrozen_later_have_room_if_it_is_asked_for(self):
        for kind, store in (None, None), (self.rmsprop, None), (None, "run"):
            with self.subTest(kind, store=store):
                model = self.model()
                expected = self.unfreeze(model, (kind or torch.optim.AdamW)(
                    model.parameters(), 1e-3))
                options = {"kind": kind, "store_name": store, "overwrite": bool(store)}
                model = self.model()
                with self.assertRaisesRegex(
                        stepwell.BudgetError, "parameter '[0-6].weight'.* did not require a "
                        "gradient at offload.*trainable_later=, or give nvme_bytes=[0-9]+ or more"
                        + (" when the store is made" if store else "$")) as told:
                    self.unfreeze(model, self.begin(model, **options))
                stepwell.torch.offloaded(model).close()
                all_of = self.model(8)
                enough = stepwell.torch._making.need(
                    all_of, list(all_of.named_parameters()), (kind or torch.optim.AdamW)(
                        all_of.parameters(), 1e-3), BLOCK, 3 if store else 1)
                self.assertLessEqual(int(str(told.exception).rsplit("=", 1)[1].split()[0]), enough)
                for later in ("?.weight", "[0-6].bias"), self.model()[:7].parameters(), None:
                    model = self.model()
                    if later is not None and not isinstance(later, tuple):
                        later = list(model[:7].parameters())
                    optimizer = self.begin(model, trainable_later=later,
                                           nvme_bytes=None if later else enough, **options)
                    self.equal(self.unfreeze(model, optimizer), expected)
                    stepwell.torch.offloaded(model).close()

    def test_what_trainable_later_does_not_find_is_refused(self):
        for later, words in (["*.wieght"], "'.*wieght', which no"), ([nn.Parameter()], "what is"):
            with self.assertRaisesRegex(ValueError, "trainable_later has " + words):
                self.begin(self.model(), trainable_later=later)

    def test_without_room_on_the_drive_the_arguments_and_enough_are_named(self):
        with self.assertRaisesRegex(stepwell.BudgetError, "must fit into device_bytes, and take up "
                                    "to ([0-9]+) bytes: raise it, or give nvme=") as told:
            self.begin(self.model(8), nvme=None)
        enough = int(str(told.exception).split("take up to ")[1].split()[0])
        model = self.model(8)
        self.unfreeze(model, self.begin(model, nvme=None, device_bytes=enough))
        with self.assertRaisesRegex(stepwell.BudgetError, "give nvme_bytes=[0-9]+ or more") as told:
            self.begin(self.model(8), nvme_bytes=100 * BLOCK)
        model = self.model(8)
        self.unfreeze(model, self.begin(
            model, nvme_bytes=int(str(told.exception).split("nvme_bytes=")[1].split()[0])))

    def test_too_few_blocks_for_an_update_are_refused_at_offload(self):
        with self.assertRaisesRegex(stepwell.BudgetError, "works on 4 blocks of 65536 .* device_by"
                                    "tes=196608 has 3: give device_bytes=262144 or more"):
            self.begin(mlp(layers=24), device_bytes=3 * BLOCK)
        model = mlp(layers=24)
        steps(model, self.begin(model, device_bytes=4 * BLOCK))
        model = mlp(layers=24)  # a block of gradients, and the only state is one more
        steps(model, self.begin(model, torch.optim.SGD, device_bytes=3 * BLOCK))

    def test_too_little_for_a_parameter_with_its_states_is_refused_at_offload(self):
        def wide():
            return nn.Sequential(*(nn.Linear(192, 192) for _ in range(4)))
        for make in (lambda p, lr: torch.optim.Adam(p, lr, amsgrad=True),
                     lambda p, lr: torch.optim.RMSprop(p, lr, centered=True, momentum=.9)):
            with self.assertRaisesRegex(
                    stepwell.BudgetError, "'0.weight', its gradient and 3 states at once, 5 times "
                    f"3 blocks .* has 14: give device_bytes={15 * BLOCK} or more"):
                self.begin(wide(), make, device_bytes=14 * BLOCK)
            model = wide()
            optimizer = self.begin(model, make, device_bytes=15 * BLOCK)
            model(torch.ones(2, 192)).sum().backward()
            optimizer.step()

    def test_an_unknown_argument_is_offloads_own_error(self):
        with self.assertRaisesRegex(TypeError, r"^offload\(\) got .* 'nvme_dir'"):
            self.begin(self.model(), nvme_dir=".")
        with self.assertRaisesRegex(TypeError, r"^init\(\) got .* 'devices'"):
            stepwell.torch.init(device_bytes=BLOCK, devices=[])

    def test_a_model_inside_which_is_offloaded_is_named(self):
        model = self.model()
        self.begin(model)
        with self.assertRaisesRegex(ValueError, "'inner.0.weight' is of a model that is offloaded "
                                    "already"):
            self.begin(nn.ModuleDict({"inner": model}))

    def test_a_store_keeps_its_size_when_the_default_would_be_another(self):
        model = self.model(8)
        optimizer = self.begin(model, store_name="run")
        expected = self.unfreeze(model, optimizer)
        with stepwell.torch.offloaded(model) as made:
            made.commit()
        with self.assertRaisesRegex(ValueError, "states of AdamW .* and the optimizer is SGD"):
            self.begin(self.model(8), torch.optim.SGD, store_name="run", resume=True)
        model = self.model(2)
        stepwell.torch.offload(model, device_bytes=24 * BLOCK, block_bytes=BLOCK,
                               nvme=self.directory, store_name="run", resume=True)
        with stepwell.torch.offloaded(model):  # to evaluate
            self.equal(list(model.parameters()), [each.detach() for each in expected])


if __name__ == "__main__":
    support.main()
