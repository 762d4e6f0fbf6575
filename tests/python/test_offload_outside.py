# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() and what torch does outside of the loop's calls: activations of changing
lengths, torch.autograd.grad, exports, wrappers and collectives. Skipped where PyTorch is not
installed.
"""
import importlib.util
import json
import os
import tempfile
import unittest
from unittest import mock

import support
from torch_ranks import run_ranks

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch
    torch.set_num_threads(1)

BLOCK = support.BLOCK


def layers(count=6, width=128):
    torch.manual_seed(0)
    return nn.Sequential(*(each for _ in range(count)
                           for each in (nn.Linear(width, width), nn.Tanh())))


def offload(test, model, optimizer=None, blocks=64, nvme_blocks=512, **options):
    directory = tempfile.TemporaryDirectory(dir=".")
    test.addCleanup(directory.cleanup)
    stepwell.torch.offload(
        model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK, thread_count=1,
        timeout=60, nvme=stepwell.Nvme(directory.name, (1 << 20) + nvme_blocks * BLOCK,
                                       driver_options="allow_tmpfs=1"), **options)
    made = stepwell.torch.offloaded(model)
    test.addCleanup(made.close)
    return made


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Activations(unittest.TestCase):
    def test_changing_lengths_need_no_more_room_than_the_longest(self):
        def losses(tiers):
            model = layers()
            optimizer = torch.optim.SGD(model.parameters(), 1e-2)
            if tiers:  # 14 blocks of parameters and gradients; a step saves at most 8 times 4
                offload(self, model, optimizer, nvme_blocks=60, activation_bytes="256KiB")
            found = []
            for step in range(24):
                torch.manual_seed(step)
                loss = model(torch.randn(128 + 67 * step % 384, 128)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            return found
        self.assertEqual(losses(True), losses(False))

    def test_all_but_the_limit_and_the_newest_tensor_leave(self):
        size = 256 * 128 * 4
        for keep in (0, size // 2, size, 3 * size):
            model = layers(8)
            made = offload(self, model)
            with stepwell.torch.save_on_tiers(model, keep) as spill:
                model(torch.randn(256, 128)).sum().backward()
            self.assertGreaterEqual(spill.left, (8 - max(keep // size, 1)) * size)
            self.assertLessEqual(spill.peak, keep + 3 * size)  # one is an argument of the call
            self.assertEqual(spill.kept, 0)
            made.close()

    def test_what_the_program_still_has_stays_and_may_be_written(self):
        """As in plain torch: backward sees what no count shows, and a counted write is an error."""
        def by_data(h):
            h.data.mul_(0.5)

        def by_array(h):
            h.detach().numpy().fill(0.3)

        def by_another(h):
            h.data = torch.ones_like(h)

        def counted(h):
            with torch.no_grad():
                h.mul_(0.5)

        class Model(nn.Module):
            def __init__(self, write, at_once):
                super().__init__()
                self.layers, self.held = layers(), []
                self.write, self.at_once = write, at_once

            def forward(self, h):
                for at, each in enumerate(self.layers):
                    h = each(h)
                    if at % 4:  # the program keeps the outputs of every other layer alone
                        continue
                    y = nn.functional.gelu(h)
                    if self.at_once:
                        self.write(h)
                        y = y + nn.functional.gelu(h)
                    else:
                        self.held.append(h)
                    h = y
                return h

        def gradient(write, keep, at_once):
            model = Model(write, at_once)
            if keep is not None:
                made = offload(self, model, activation_bytes=keep)
            torch.manual_seed(3)
            x = torch.randn(256, 128, requires_grad=True)
            y = model(x)
            if keep is not None and keep < 1 << 20:
                self.assertGreater(made.spill.left, 0)
            for each in model.held:
                write(each)
            y.sum().backward()
            if keep is not None:
                made.close()
            return x.grad

        here = torch.empty(0).is_cpu
        for write in (by_data, *[by_array] * here):
            for at_once in (False, True):
                plain = gradient(write, None, at_once)
                for keep in (0, 300000):
                    with self.subTest(write=write.__name__, at_once=at_once, keep=keep):
                        self.assertTrue(torch.equal(gradient(write, keep, at_once), plain))
        model = layers()
        offload(self, model, activation_bytes=0)
        x = torch.randn(256, 128)
        y = model(x)
        x.data = torch.randn(256, 128)
        with self.assertRaisesRegex(RuntimeError, "was given other data"):
            y.sum().backward()
        for keep in 0, 1 << 30:
            for write, words in ((counted, "modified by an inplace operation"),
                                 (by_another, "was given other data")):
                with self.assertRaisesRegex(RuntimeError, words):
                    gradient(write, keep, False)

    def test_other_forms_of_tensors_come_back_as_they_were(self):
        class Model(nn.Module):
            def __init__(self, form):
                super().__init__()
                self.layers, self.form = layers(), form

            def forward(self, h):
                for each in self.layers:
                    h = self.form(each(h))
                return h

        def gradient(form, offloads):
            model = Model(form)
            if offloads:
                made = offload(self, model, activation_bytes=0)
            torch.manual_seed(3)
            x = torch.randn(256, 128, requires_grad=True)
            y = model(x)
            if offloads:
                self.assertGreater(made.spill.left, 0)
            y.sum().backward()
            if offloads:
                made.close()
            return x.grad

        def conjugate(h):
            whole = torch.view_as_complex(h.view(256, 64, 2)).conj()
            return torch.view_as_real(whole * whole.imag).reshape(256, 128)

        def nested(h):
            whole = torch.nested.nested_tensor([h[:100], h[100:]])  # a copy, without a graph
            return h * torch.cat([each.sum(0, keepdim=True) for each in whole.unbind()]).sum()

        def of_nested(h):
            whole = torch.nested.as_nested_tensor([h[:100], h[100:]])
            return torch.cat(torch.relu(whole).unbind())
        nested_too = [nested, of_nested] * torch.empty(0).is_cpu
        for form in conjugate, *nested_too:
            with self.subTest(form.__name__):
                self.assertTrue(torch.equal(gradient(form, True), gradient(form, False)))


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Terms(unittest.TestCase):
    """Gradients in a loss, and beside passes that add to them, have the values of plain torch."""

    def found(self, act, blocks):
        model = layers(4, 160)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if blocks:
            made = offload(self, model, optimizer, blocks=blocks)
        weight = model[0].weight
        torch.manual_seed(3)

        def loss():
            return model(torch.randn(8, 160)).square().mean()
        loss().backward()
        try:
            result = act(weight, loss)
        except RuntimeError as error:
            self.assertIn("modified by an inplace operation", str(error))
            result = "refused"
        optimizer.step()
        weights = [p.detach().clone() for p in model.parameters()]
        if blocks:
            made.close()
        return result, weights

    def same(self, *acts):
        for act in acts:
            plain, weights = self.found(act, 0)
            for blocks in 16, 24, 1024:
                with self.subTest(act.__name__, blocks=blocks):
                    ours, others = self.found(act, blocks)
                    self.assertEqual(type(plain), type(ours))
                    if isinstance(plain, torch.Tensor):
                        self.assertTrue(torch.equal(plain, ours))
                    for one, other in zip(weights, others):
                        self.assertTrue(torch.equal(one, other))

    def test_a_gradient_that_is_in_the_loss_is_added_to(self):
        def summed(weight, loss):
            (loss() + (weight * weight.grad).sum()).backward()

        def read(weight, loss):
            summed(weight, loss)
            return weight.grad.clone()

        def edited(weight, loss):
            summed(weight, loss)
            weight.grad.add_(0.01)

        def clipped(weight, loss):
            summed(weight, loss)
            return nn.utils.clip_grad_norm_([weight], 0.01).clone()
        self.same(summed, read, edited, clipped)

    def test_one_that_was_added_to_since_is_an_error_in_the_graph_that_has_it(self):
        def later(weight, loss):
            x = torch.ones(160, 160, requires_grad=True)
            term = (x * weight.grad).sum()
            loss().backward()
            term.backward()
            return x.grad

        def of_weight(weight, loss):
            term = (weight * weight.grad).sum()
            loss().backward()
            term.backward()

        def view(weight, loss):
            x = torch.ones(160, requires_grad=True)
            term = (x * weight.grad[0]).sum()
            weight.grad.zero_()
            term.backward()

        def dropped(weight, loss):  # and keeps its values
            x = torch.ones(160, 160, requires_grad=True)
            term = (x * weight.grad).sum()
            weight.grad = None
            loss().backward()
            term.backward()
            return x.grad
        self.same(later, of_weight, view, dropped)

    @unittest.skipUnless(support.DEVICE == "cpu", "memory of a device is seen by no array")
    def test_an_array_over_one_sees_what_a_pass_adds(self):
        def array(weight, loss):
            seen = weight.grad.numpy()
            loss().backward()
            return torch.tensor(seen.copy())

        def address(weight, loss):
            weight.grad.data_ptr()
            loss().backward()
            return weight.grad.clone()
        self.same(array, address)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Edges(unittest.TestCase):
    """torch.autograd.grad() and backward(inputs=) of more parameters than fit."""

    def both(self, use):
        """What a use returns in plain torch, and offloaded with a third of the model in memory."""
        found = []
        for tiers in (False, True):
            model = layers(12)
            made = offload(self, model, blocks=6) if tiers else None
            for _ in range(2):
                torch.manual_seed(1)
                value = use(model, model(torch.randn(4, 128)).square().mean())
                model.zero_grad()
            found.append([None if each is None else each.tolist() for each in value])
            if made is not None:
                self.assertEqual(made.runtime.tier_stats("device").open_views, 0)
        self.assertEqual(found[1], found[0])

    def test_grad_of_all_parameters_and_of_one(self):
        self.both(lambda model, loss: torch.autograd.grad(loss, list(model.parameters())))
        self.both(lambda model, loss: torch.autograd.grad(loss, model[12].weight))

    def test_grad_of_unused_parameters(self):
        def use(model, loss, **options):
            loss = model[:12](torch.ones(1, 128)).sum()
            return torch.autograd.grad(loss, list(model.parameters()), **options)
        self.both(lambda model, loss: use(model, loss, allow_unused=True))
        self.both(lambda model, loss: use(model, loss, materialize_grads=True))
        model = layers(2)
        offload(self, model)
        model[0].weight.requires_grad_(False)
        for wrong in (model[0].weight, model[2].weight):
            with self.assertRaisesRegex(RuntimeError, "differentiated Tensor"):
                torch.autograd.grad(model[0](torch.ones(1, 128)).sum(), wrong)

    def test_grad_of_a_gradient(self):
        def use(model, loss):
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            sum(each.square().sum() for each in grads).backward()
            return [each.grad.clone() for each in model.parameters()]
        self.both(use)

    def test_hooks_of_a_parameter_apply_to_grad(self):
        def use(model, loss):
            handle = model[0].weight.register_hook(lambda grad: 2 * grad)
            found = torch.autograd.grad(loss, [model[0].weight, model[0].bias])
            handle.remove()
            return found
        self.both(use)

    def test_backward_to_some_parameters(self):
        def use(model, loss):
            loss.backward(inputs=list(model.parameters())[::3])
            return [None if each.grad is None else each.grad.clone()
                    for each in model.parameters()]
        self.both(use)

    def test_an_encoder_takes_the_path_that_it_takes_in_plain_torch(self):
        found = []
        for tiers in False, True:
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
            model = nn.ModuleDict({"encoder": nn.TransformerEncoder(layer, 6)}).eval()
            made = offload(self, model, blocks=12) if tiers else None
            padded = torch.arange(6).expand(3, 6) >= torch.tensor([[4], [6], [3]])
            calls = []
            nested = torch._nested_tensor_from_mask
            with torch.no_grad(), mock.patch.object(
                    torch, "_nested_tensor_from_mask",
                    lambda *given, **more: calls.append(1) or nested(*given, **more)):
                result = model["encoder"](torch.randn(3, 6, 64), src_key_padding_mask=padded)
            self.assertEqual(calls, [1])
            found.append(result.tolist())
            if made is not None:
                self.assertLess(made.budget, sum(p.nbytes for p in model.parameters()))
                self.assertEqual(made.runtime.tier_stats("device").open_views, 0)
        self.assertEqual(found[1], found[0])

    def test_a_parameter_as_the_gradient(self):
        self.both(lambda model, loss: torch.autograd.grad(
            model[0](torch.eye(128)), model[0].weight, grad_outputs=model[2].weight))

    def test_a_weight_that_does_not_fit_is_refused_by_name(self):
        model = nn.Sequential(nn.Linear(128, 1024), nn.Linear(1024, 8))
        offload(self, model, blocks=6)
        with self.assertRaisesRegex(NotImplementedError, "parameter '0.weight' is larger"):
            torch.autograd.grad(model(torch.ones(1, 128)).sum(), list(model.parameters()))


def collectives(rank, size):
    """What each use of torch.distributed leaves in parameters and gradients, offloaded and plain;
    and the views that are open afterwards."""
    import torch.distributed as dist
    from torch.distributed import _functional_collectives as functional
    other = 1 - rank

    def parameters(model):
        dist.broadcast(model[0].weight, 0)
        dist.broadcast(model[0].weight.data, 1)
        dist.broadcast(model[2].weight.detach()[3:9], 0, async_op=True).wait()
        with torch.inference_mode():
            dist.broadcast(model[2].bias, 1)
        for each in model.parameters():  # together more than fit
            dist.broadcast(each, 0)

    def gradients(model):
        for each in model.parameters():
            dist.all_reduce(each.grad)
            each.grad /= 2

    def later(model):
        works = [dist.all_reduce(each.grad, async_op=True)
                 for each in list(model.parameters())[:4]]
        for work in works:
            work.wait()
            assert work.is_completed()
        dist.all_reduce(model[4].weight.grad, async_op=True).get_future().wait()
        model[0].weight.grad.mul_(0.5)

    def pairs(model):
        mine, theirs = model[0].weight.grad, torch.empty(128, 128)
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, theirs, other),
                                        dist.P2POp(dist.isend, mine, other)])
        for work in works:
            work.wait()
        mine += theirs
        receives = dist.irecv(model[2].weight.data, other)
        dist.isend(model[4].weight, other).wait()
        receives.wait()

    def gathers(model):
        grad = model[0].weight.grad
        found = [torch.empty_like(model[2].weight.data, memory_format=torch.contiguous_format)
                 for _ in range(size)]
        dist.all_gather(found, grad)
        model[2].weight.grad.copy_(found[other])
        dist.all_gather(found, model[4].weight)
        model[4].weight.data.copy_(found[other])
        whole = torch.empty(256, 128)
        dist.all_gather_into_tensor(whole, model[6].weight)
        dist.reduce_scatter_tensor(model[6].weight.grad, whole)
        dist.reduce(model[8].weight.grad, 0)
        dist.scatter(model[8].bias.data, [torch.ones(128), torch.zeros(128)] if not rank else None)

    def together(model):
        dist.all_reduce_coalesced([model[0].weight.grad, model[0].bias.grad])
        with dist._coalescing_manager(async_ops=True) as manager:
            dist.all_reduce(model[2].weight.grad)
            dist.all_reduce(model[2].bias.grad)
        manager.wait()

    def functions(model):
        total = functional.all_reduce(model[0].weight, "sum", [0, 1])
        model[0].weight.data.copy_(total)
        whole = functional.all_gather_tensor(model[2].weight, 0, [0, 1])
        model[2].weight.data.copy_(whole[128:])
        total = functional.all_reduce(model[0].weight.grad, "sum", [0, 1])
        whole = functional.all_gather_tensor(model[2].weight.grad, 0, [0, 1])
        model[0].weight.grad.copy_(total + whole[:128])

    found = []
    for tiers in (False, True):
        for use in (parameters, gradients, later, pairs, gathers, together, functions):
            model = layers()
            with torch.no_grad():
                model[4].weight.mul_(rank + 1)
                model[2].bias.add_(rank)
            optimizer = torch.optim.SGD(model.parameters(), 1e-2)
            made = None
            if tiers:
                stepwell.torch.offload(
                    model, optimizer, device_bytes=6 * BLOCK, block_bytes=BLOCK, thread_count=1,
                    timeout=20, nvme=stepwell.Nvme(".", (1 << 20) + 256 * BLOCK,
                                                   driver_options="allow_tmpfs=1"))
                made = stepwell.torch.offloaded(model)
            torch.manual_seed(rank)
            model(torch.randn(4, 128)).square().mean().backward()
            try:
                with torch.no_grad():
                    use(model)
                left = 0
                if made is not None:
                    made.mark()
                    left = made.runtime.tier_stats("device").open_views
                grads = [float(each.grad.double().sum()) for each in model.parameters()]
                optimizer.step()
                found.append((use.__name__, left, grads,
                              [float(each.double().sum()) for each in model.state_dict().values()]))
            except Exception as error:
                found.append((use.__name__, f"{type(error).__name__}: {error}"))
            if made is not None:
                made.close()
    return found


def refused(rank, size):
    """What each wrapper says around an offloaded model, inside of it, and of a part of it."""
    from torch.distributed._composable.replicate import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel
    mesh = init_device_mesh("cpu", (size,))
    cpu = torch.device("cpu")

    def made(model):
        return stepwell.torch.offload(model, device_bytes=64 * BLOCK, block_bytes=BLOCK)[0]

    def inside(wrapper, **options):
        wrapped = wrapper(layers(2), **options)
        made(wrapped.module)
        wrapped(x)

    def composed(wrap):
        model = made(layers(2))
        wrap(model)
        model(x)
    x = torch.ones(1, 128)
    uses = (
        lambda: DistributedDataParallel(made(layers(2))),
        lambda: DistributedDataParallel(made(layers(2))[0]),
        lambda: inside(DistributedDataParallel),
        lambda: made(DistributedDataParallel(layers(2))),
        lambda: DistributedDataParallel(nn.Sequential(made(layers(2)), nn.Linear(128, 1)))(x),
        lambda: FullyShardedDataParallel(made(layers(2)), device_id=cpu)(x),
        lambda: inside(FullyShardedDataParallel, device_id=cpu),
        lambda: made(FullyShardedDataParallel(layers(2), device_id=cpu)),
        lambda: composed(lambda model: fully_shard(model, mesh=mesh)),
        lambda: composed(lambda model: replicate(model)),
        lambda: composed(lambda model: fully_shard(model[1], mesh=mesh)),
        lambda: composed(lambda model: replicate(model[0])),
        lambda: made(fully_shard(layers(2), mesh=mesh)),
    )
    said = []
    for use in uses:
        try:
            use()
            said.append("")
        except TypeError as error:
            said.append(str(error))
    # A frozen model needs no gradients, and neither does one that was closed.
    frozen = made(layers(2).requires_grad_(False))
    both = DistributedDataParallel(nn.Sequential(frozen, nn.Linear(128, 1)))
    both(x).sum().backward()
    model = made(layers(2))
    stepwell.torch.offloaded(model).close()
    DistributedDataParallel(model)(x).sum().backward()
    return said


def launched(rank, size):
    """The losses of accelerate and of the Trainer over a group, and the weights' sum."""
    import accelerate
    import transformers
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # as torchrun does
    found = []

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, at):
            torch.manual_seed(at)
            return {"x": torch.randn(128)}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers(3)

        def forward(self, x):
            return {"loss": self.layers(x).float().square().mean()}

    def made(group):
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        if group is not None:
            stepwell.torch.offload(model, optimizer, device_bytes=64 * BLOCK, block_bytes=BLOCK,
                                   thread_count=1, timeout=60, group=group)
        return model, optimizer

    group = stepwell.Group.from_torch(timeout=60)
    for tiers in (False, True):
        for mixed in ("no", "bf16"):
            accelerate.state.AcceleratorState._reset_state()
            accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed)
            model, optimizer = made(group if tiers else None)
            if tiers and mixed != "no":
                try:
                    accelerator.prepare(model)
                    raise AssertionError("not refused")
                except TypeError as error:
                    assert "evaluation_mode=True" in str(error), error
                stepwell.torch.offloaded(model).close()
                model, optimizer = made(group)
                model = accelerator.prepare_model(model, evaluation_mode=True)
            data = torch.utils.data.DataLoader(Data(), batch_size=2)
            model, optimizer, data = accelerator.prepare(model, optimizer, data)
            losses = []
            for batch in data:
                loss = model(**batch)["loss"]
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(float(accelerator.gather(loss.detach().view(1)).mean()))
            weights = accelerator.unwrap_model(model).state_dict().values()
            found.append(losses + [float(sum(each.double().sum() for each in weights))])
            if tiers:
                stepwell.torch.offloaded(accelerator.unwrap_model(model)).close()

        class Losses(transformers.TrainerCallback):
            def on_log(self, args, state, control, logs=None, **_):
                if "loss" in logs:
                    losses.append(logs["loss"])
        losses = []
        accelerate.state.AcceleratorState._reset_state()
        with tempfile.TemporaryDirectory(dir=".") as directory:
            options = transformers.TrainingArguments(
                directory, use_cpu=True, num_train_epochs=2, per_device_train_batch_size=2,
                logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True,
                remove_unused_columns=False, lr_scheduler_type="constant")
            model, optimizer = made(group if tiers else None)
            trainer = transformers.Trainer(model, options, train_dataset=Data(),
                                           optimizers=(optimizer, None), callbacks=[Losses()])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        found.append(losses + [float(sum(each.double().sum()
                                         for each in model.state_dict().values()))])
        if tiers:
            stepwell.torch.offloaded(model).close()
    group.destroy()
    return found


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Wrappers(unittest.TestCase):
    def test_what_averages_or_divides_parameters_itself_is_refused(self):
        for status, out, errors in run_ranks("refused", module="test_offload_outside"):
            self.assertEqual(status, 0, errors)
            for said in json.loads(out):
                self.assertIn("group=stepwell.Group.from_torch()", said)

    @unittest.skipUnless(importlib.util.find_spec("accelerate")
                         and importlib.util.find_spec("transformers"),
                         "accelerate or transformers is not installed (./dev test long)")
    def test_accelerate_and_the_trainer_leave_a_model_over_ranks_as_it_is(self):
        first, second = run_ranks("launched", module="test_offload_outside")
        for status, out, errors in (first, second):
            self.assertEqual(status, 0, errors)
            found = json.loads(out)
            half = len(found) // 2
            for plain, tiers in zip(found[:half], found[half:]):
                self.assertEqual(len(tiers), len(plain))
                for one, other in zip(tiers, plain):
                    self.assertAlmostEqual(one, other, delta=2e-5 * abs(other))

    def test_shared_memory_is_refused(self):
        model = layers(2)
        offload(self, model)
        with self.assertRaisesRegex(NotImplementedError, "'0.weight' is in tiers, and its memory"):
            model.share_memory()

    def test_an_exported_model_has_the_weights_of_training(self):
        model = layers(8)
        optimizer = torch.optim.AdamW(model.parameters())
        offload(self, model, optimizer, blocks=6)
        x = torch.randn(2, 128)
        exported = torch.export.export(model.eval(), (x,)).module()
        for _ in range(2):
            self.assertTrue(torch.equal(exported(x), model(x)))
            model.train()(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Collectives(unittest.TestCase):
    def test_collectives_pin_what_is_in_tiers_for_as_long_as_they_use_it(self):
        for status, out, errors in run_ranks("collectives", module="test_offload_outside"):
            self.assertEqual(status, 0, errors)
            found = json.loads(out)
            half = len(found) // 2
            for plain, tiers in zip(found[:half], found[half:]):
                self.assertEqual(tiers, plain)


if __name__ == "__main__":
    support.main()
