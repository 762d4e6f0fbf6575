# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() and what torch does outside of the loop's calls: activations of changing
lengths, torch.autograd.grad, exports, wrappers and collectives. Skipped where PyTorch is not
installed.
"""
import importlib.util
import tempfile
import unittest

import support

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
            self.assertLessEqual(spill.peak, keep + 2 * size)
            self.assertEqual(spill.kept, 0)
            made.close()


if __name__ == "__main__":
    support.main()
