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

    import stepwell
    import stepwell.torch
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

    def losses(self, blocks, cache):
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
                with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                    loss = model(torch.randn(4, 128)).float().square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                found.append(loss.item())
            if blocks:
                stepwell.torch.offloaded(model).close()
        return found, [parameter.sum().item() for parameter in model.parameters()]

    def test_losses_and_weights_are_those_of_plain_torch(self):
        for cache in (True, False):
            plain = self.losses(0, cache)
            for blocks in (12, 128):
                with self.subTest(cache=cache, blocks=blocks):
                    self.assertEqual(self.losses(blocks, cache), plain)

    def test_the_casts_of_weights_are_saved_as_references(self):
        model = nn.Linear(128, 128)
        stepwell.torch.offload(model, device_bytes=16 * BLOCK, block_bytes=BLOCK)
        with torch.autocast("cpu", torch.bfloat16):
            node = model(torch.ones(2, 128, requires_grad=True)).grad_fn
        packed = [getattr(node, name).data for name in dir(node) if name.startswith("_raw_saved")]
        self.assertEqual(sum(type(each) is SavedCast for each in packed), 1)
        stepwell.torch.offloaded(model).close()

    def test_a_weight_written_before_backward_is_an_error(self):
        model = nn.Linear(128, 128)
        stepwell.torch.offload(model, device_bytes=16 * BLOCK, block_bytes=BLOCK)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.ones(2, 128, requires_grad=True)).sum()
        with torch.no_grad():
            model.weight.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "parameter 'weight' was updated or written"):
            loss.backward()
        stepwell.torch.offloaded(model).close()


if __name__ == "__main__":
    unittest.main()
