# SPDX-License-Identifier: Apache-2.0
"""autocast over an offloaded model: the losses of plain PyTorch, and no half copy of the weights.

Skipped where PyTorch is not installed.
"""
import importlib.util
import tempfile
import unittest

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    import torch.nn.functional as F
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    import stepwell
    import stepwell.torch
    from stepwell.torch._casts import _in_cache
    from stepwell.torch._saved import SavedCast

BLOCK = support.BLOCK


class Kinds(nn.Module if HAS_TORCH else object):
    """Uses of weights whose casts autograd saves: as they are, as views, twice, written."""

    def __init__(self):
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(128, 128, bias=n % 2 == 0) for n in range(4))
        self.conv = nn.Conv2d(2, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.own = nn.Parameter(torch.randn(128, 128) / 100)

    def forward(self, x):
        for linear in [*self.linear, self.linear[0]]:  # the first twice
            x = x + linear(x)
        halves = self.own.to(torch.bfloat16)
        x = x + x.to(torch.bfloat16) @ halves.t()[:, :128] + F.linear(x, self.own[:128])
        with torch.no_grad():
            halves = self.own.to(torch.bfloat16)
        doubled = self.own.to(torch.bfloat16)
        with torch.no_grad():
            doubled.mul_(2)
        x = x + x.to(torch.bfloat16) @ doubled + x.to(torch.bfloat16) @ halves
        return x.float() + self.conv(x.float().view(-1, 2, 8, 8)).mean((1, 2, 3))[:, None]


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Autocast(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def losses(self, blocks, cache, way=""):
        torch.manual_seed(1)
        model = Kinds()
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        found = []
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            if blocks:
                stepwell.torch.offload(
                    model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK,
                    thread_count=2, nvme=stepwell.Nvme(directory, (1 << 20) + 256 * BLOCK,
                                                       driver_options="allow_tmpfs=1"))
            for step in range(3):
                torch.manual_seed(step)
                with torch.autocast(support.DEVICE, torch.bfloat16, cache_enabled=cache):
                    loss = self.loss(model, way)
                    if way == "backward inside":
                        loss.backward()
                if way != "backward inside":
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            if blocks:
                stepwell.torch.offloaded(model).close()
        return found, [parameter.sum().item() for parameter in model.parameters()]

    def loss(self, model, way):
        """A loss of one or two calls of the model."""
        first, second = torch.randn(4, 128), torch.randn(4, 128)
        if way == "checkpoint":
            return checkpoint(model, first, use_reentrant=False).float().square().mean()
        if way == "hooks that keep":
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                return model(first).float().square().mean()
        loss = model(first).float().square().mean()
        if way == "evaluated between":
            with torch.no_grad():
                loss = loss * model(second).float().square().mean()
        if way in ("twice", "evaluated between"):  # both uses of a weight have one copy
            loss = loss + model(second).float().square().mean()
        return loss

    def test_losses_and_weights_are_those_of_plain_torch(self):
        for way in ("", "twice", "evaluated between", "backward inside", "checkpoint",
                    "hooks that keep"):
            for cache in (True, False):
                plain = self.losses(0, cache, way)
                for blocks in (12, 128):
                    with self.subTest(way, cache=cache, blocks=blocks):
                        self.assertEqual(self.losses(blocks, cache, way), plain)

    def offload(self, model, optimizer, blocks):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".")
        self.addCleanup(directory.cleanup)
        stepwell.torch.offload(model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK,
                               nvme=stepwell.Nvme(directory.name, 16 << 20,
                                                  driver_options="allow_tmpfs=1"))
        self.addCleanup(stepwell.torch.offloaded(model).close)

    def deep(self, **options):
        """A model of 8 256 KiB in a budget of 8 MiB, whose units are several of them."""
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))
        optimizer = torch.optim.SGD(model.parameters(), 1e-2)
        stepwell.torch.offload(model, optimizer, block_bytes=BLOCK,
                               **(options or {"device_bytes": 128 * BLOCK}))
        self.addCleanup(stepwell.torch.offloaded(model).close)
        return model, optimizer, stepwell.torch.offloaded(model)

    def test_the_cache_holds_memory_of_pinned_parameters_alone(self):
        model, _, made = self.deep()

        def sizes():
            copies = [cast.copy() for cast in made.casts.found.values()]
            return [copy.untyped_storage().nbytes() for copy in copies if copy is not None]
        inside = []
        model[7].register_forward_hook(lambda *_: inside.append(sum(sizes())))
        with torch.autocast(support.DEVICE, torch.bfloat16):
            x = torch.ones(2, 256, requires_grad=True)
            loss = model(x).sum()
            self.assertEqual(sizes(), [0] * 8)  # they are objects of the cache still
            loss = loss + model(x).sum()
            halves = model[3].weight.to(torch.bfloat16)  # another copy, which the program has
            halves = halves @ halves
            self.assertEqual(sizes(), [0] * 8)
            loss = loss + model(x).sum() + halves.sum()
        self.assertLessEqual(max(inside), 4 * 256 * 256 * 2)
        del halves
        self.assertEqual(sizes(), [])
        loss.backward()

    def test_without_gradients_the_cache_holds_memory_of_pinned_parameters_alone(self):
        def seen(model, sizes):
            found = []
            x = torch.linspace(-1, 1, 512, device=support.DEVICE).view(2, 256)
            with torch.autocast(support.DEVICE, torch.bfloat16):
                with torch.no_grad():
                    found += [model(x), model(x)]
                    held = sizes(model)
                loss = model(x).square().mean()  # through the same copies
            loss.backward()
            return [*found, loss, *(each.grad.clone() for each in model.parameters())], held

        def of_plain(model):
            return [_in_cache(layer.weight, torch.bfloat16).untyped_storage().nbytes()
                    for layer in model]
        torch.manual_seed(1)
        plain, held = seen(nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).to(
            support.DEVICE), of_plain)
        self.assertEqual(held, [256 * 256 * 2] * 8)
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            model, _, made = self.deep(device_bytes=64 * BLOCK, nvme=stepwell.Nvme(
                directory, 16 << 20, driver_options="allow_tmpfs=1"))
            self.assertFalse(made.fits)
            ours, held = seen(model, lambda _: [
                cast.copy().untyped_storage().nbytes() for cast in made.casts.found.values()])
        self.assertEqual(held, [0] * 8)
        for one, other in zip(plain, ours):
            self.assertTrue(torch.equal(one, other))

    def test_a_copy_from_before_an_update_is_an_error(self):
        model, optimizer, _ = self.deep()
        x = torch.ones(2, 256, requires_grad=True)
        with torch.autocast(support.DEVICE, torch.bfloat16):
            model(x).sum().backward()
            optimizer.step()
            with self.assertRaisesRegex(RuntimeError, "cache has a copy of parameter '0.weight'"):
                model(x)
        optimizer.zero_grad()
        with torch.autocast(support.DEVICE, torch.bfloat16):
            model(x).sum().backward()  # in a block of its own
        optimizer.step()

    def test_a_copy_that_the_program_has_keeps_its_memory(self):
        model, _, made = self.deep()
        x = torch.ones(2, 256, requires_grad=True)
        kept = []

        def keep(module, args, out):
            kept.append(made.casts.found[made.by_parameter[id(module.weight)]].copy())
        model[2].register_forward_hook(keep)
        with torch.autocast(support.DEVICE, torch.bfloat16):
            model(x)
            self.assertEqual(kept[0].untyped_storage().nbytes(), 2 * 256 * 256)
            self.assertTrue(torch.equal(kept[0], model[2].weight.bfloat16()))

    def test_the_casts_of_weights_are_saved_as_references(self):
        model = nn.Linear(128, 128)
        stepwell.torch.offload(model, device_bytes=16 * BLOCK, block_bytes=BLOCK)
        with torch.autocast(support.DEVICE, torch.bfloat16):
            node = model(torch.ones(2, 128, requires_grad=True)).grad_fn
        packed = [getattr(node, name).data for name in dir(node) if name.startswith("_raw_saved")]
        self.assertEqual(sum(type(each) is SavedCast for each in packed), 1)
        stepwell.torch.offloaded(model).close()

    def test_a_weight_is_written_before_backward(self):
        """Backward uses the cast that was made in the forward pass."""
        def by_data(weight):
            weight.data.mul_(2)

        def by_held(weight, held=None):
            held.mul_(2)

        def by_array(weight):
            weight.detach().numpy()[:] *= 2

        def counted(weight):
            with torch.no_grad():
                weight.mul_(2)
        writes = [by_data, by_held, counted] + [by_array] * (support.DEVICE == "cpu")

        def gradient(write, inside, offloads):
            torch.manual_seed(1)
            model = nn.Linear(128, 128)
            if offloads:
                stepwell.torch.offload(model, device_bytes=16 * BLOCK, block_bytes=BLOCK)
            x = torch.ones(2, 128, requires_grad=True)
            held = [model.weight.data] if write is by_held else []
            with torch.autocast(support.DEVICE, torch.bfloat16):
                loss = model(x).sum()
                if inside:  # the cast in the cache is older than the weight then
                    write(model.weight, *held)
                    loss = loss + model(x).sum()
            if not inside:
                write(model.weight, *held)
            loss.backward()
            found = x.grad, loss.detach(), model.weight.detach().clone()
            if offloads:
                stepwell.torch.offloaded(model).close()
            return found
        for write in writes:
            for inside in (False, True):
                if write is counted and inside:
                    continue  # raises: tests below
                with self.subTest(write.__name__, inside=inside):
                    for one, other in zip(gradient(write, inside, False),
                                          gradient(write, inside, True)):
                        self.assertTrue(torch.equal(one, other))

    def test_a_cast_of_the_program_that_is_written_before_backward(self):
        def loss_of(offloads, write):
            torch.manual_seed(1)
            model = nn.Linear(128, 128, bias=False)
            if offloads:
                stepwell.torch.offload(model, device_bytes=16 * BLOCK, block_bytes=BLOCK)
            x = torch.ones(2, 128, dtype=torch.bfloat16, requires_grad=True)
            half = model.weight.to(torch.bfloat16)
            loss = nn.functional.linear(x, half).sum()
            write(half)
            try:
                loss.backward()
                return x.grad
            finally:
                if offloads:
                    stepwell.torch.offloaded(model).close()

        def by_data(half):
            half.data.mul_(2)

        def counted(half):
            with torch.no_grad():
                half.mul_(2)
        self.assertTrue(torch.equal(loss_of(False, by_data), loss_of(True, by_data)))
        for offloads in (False, True):
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss_of(offloads, counted)

    def test_programs_in_one_block_have_the_numbers_of_plain_torch(self):
        def autocast(**options):
            return torch.autocast(support.DEVICE, torch.bfloat16, **options)

        def input(grad=True):
            return torch.ones(4, 192, requires_grad=grad)

        def closed(model, _, close):
            for _ in range(2):
                model(input())
            close()
            return model(input())

        def first_saved_after_a_step(model, optimizer, _):
            model(input(False)).float().sum().backward()  # saves no weight
            optimizer.step()
            optimizer.zero_grad()
            x = input()
            found = [model(x), model(x)]
            found[1].float().sum().backward()
            return [*found, x.grad]

        def first_saved_after_a_write(model, *_):
            with torch.no_grad():
                model(input(False))
                model[0].weight.mul_(2)
            x = input()
            found = model(x)
            found.float().sum().backward()
            return [found, x.grad]

        def off_inside(model, *_):
            loss = model(input()).float().sum()
            with autocast(enabled=False):
                found = model(input(False))
                loss.backward()
            with torch.autocast(support.DEVICE, torch.float16):
                norm = model[0].weight.norm()
            return [found, model[0].weight.grad, norm, model(input())]

        def functional(model, *_):
            model(input())
            return torch.func.grad(lambda x: model(x).float().sum())(input(False))

        for program in (closed, first_saved_after_a_step, first_saved_after_a_write, off_inside,
                        functional):
            expected = None
            for blocks in 0, 32, 512:
                with self.subTest(program.__name__, blocks=blocks):
                    torch.manual_seed(0)
                    model = nn.Sequential(nn.Linear(192, 192))
                    optimizer = torch.optim.SGD(model.parameters(), 0.1)
                    close = None
                    if blocks:
                        self.offload(model, optimizer, blocks)
                        close = stepwell.torch.offloaded(model).close
                    with autocast():
                        found = program(model, optimizer, close or (lambda: None))
                    found = [each.float().tolist() for each in
                             (found if isinstance(found, list) else [found])]
                    expected = expected or found
                    self.assertEqual(found, expected)


if __name__ == "__main__":
    unittest.main()
