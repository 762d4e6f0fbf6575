# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own data bases of modules and optimizers, offloaded: equal by bits, or refused by name.

Every sample with parameters of torch.testing._internal.common_modules and every set of arguments of
common_optimizers. Skipped where PyTorch is not installed.
"""
import collections
import copy
import importlib.util
import sys
import tempfile
import types
import unittest
import warnings

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    if importlib.util.find_spec("expecttest") is None:  # the data bases only derive a class from it
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    import torch
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.common_optimizers import optim_db

    import stepwell
    import stepwell.torch
    from offload_programs import difference, plain

SAMPLES = 6  # of a module, in each mode

REFUSED = {"LBFGS": "works on all parameters at once"}
FAILS_IN_PLAIN_TORCH = {"SparseAdam"}  # with dense gradients


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for each in value for tensor in tensors(each)]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return tensors(getattr(value, "data", ()))


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Databases(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(caught.__exit__, None, None, None)
        warnings.simplefilter("ignore")

    def offload(self, model, optimizer, blocks):
        directory = tempfile.TemporaryDirectory(prefix="stepwell-data-", dir=".")
        self.addCleanup(directory.cleanup)
        stepwell.torch.offload(
            model, optimizer, device_bytes=blocks * support.BLOCK, block_bytes=support.BLOCK,
            nvme=stepwell.Nvme(directory.name, 512 * support.BLOCK,
                               driver_options="allow_tmpfs=1"), timeout=20)

    def module_steps(self, info, sample, training, kernel, offloaded):
        """What two steps of a module compute, and its parameters and buffers after them."""
        torch.manual_seed(0)
        model = info.module_cls(*copy.deepcopy(sample.constructor_input.args),
                                **copy.deepcopy(sample.constructor_input.kwargs))
        model.train(training).float()
        if not list(model.parameters()):
            return None
        optimizer = (torch.optim.AdamW(model.parameters(), lr=0.01) if kernel
                     else torch.optim.RMSprop(model.parameters(), lr=0.01))
        if offloaded:
            self.offload(model, optimizer, 32)
        found = []
        try:
            for step in range(2):
                torch.manual_seed(step + 1)
                result = tensors(model(*copy.deepcopy(sample.forward_input.args),
                                       **copy.deepcopy(sample.forward_input.kwargs)))
                found += plain(result)
                results = [each for each in result if each.requires_grad]
                if results:
                    sum(each.float().square().sum() for each in results).backward()
                optimizer.step()
                optimizer.zero_grad()
            return found + plain([*model.parameters(), *model.buffers()])
        finally:
            if offloaded:
                stepwell.torch.offloaded(model).close()

    def test_every_module_of_torchs_data_base(self):
        counts = collections.Counter()
        for info in module_db:
            for training in True, False:
                try:
                    samples = list(info.module_inputs_func(
                        info, device=support.DEVICE, dtype=torch.float32, requires_grad=False,
                        training=training))
                except Exception:  # it has none on a CPU
                    continue
                for at, sample in enumerate(samples[:SAMPLES]):
                    arguments = info, sample, training, at % 2 == 0
                    try:
                        right = self.module_steps(*arguments, False)
                    except Exception:
                        counts["fails in plain torch"] += 1
                        continue
                    if right is None:
                        break
                    with self.subTest(info.name, sample=at, training=training):
                        if "Lazy" in info.name:
                            with self.assertRaisesRegex(TypeError, "has no shape yet"):
                                self.module_steps(*arguments, True)
                            counts["refused"] += 1
                            continue
                        got = self.module_steps(*arguments, True)
                        self.assertEqual(difference(right, got, info.name), "")
                        counts["equal"] += 1
        print(dict(counts))
        self.assertGreaterEqual(counts["equal"], 200 if support.DEVICE == "cpu" else 180)

    def optimizer_steps(self, info, given, blocks):
        """Losses of four steps, the weights, and the optimizer's state_dict()."""
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(96, 96, bias=at % 2 == 0)
                                      for at in range(8)))
        parameters = [each for each in model.parameters()
                      if each.dim() == 2 or info.optim_cls.__name__ != "Muon"]
        # The default of a device, which offload() does not have.
        one = {"foreach": False} if "foreach" in info.supported_impls else {}
        optimizer = info.optim_cls(parameters, **one, **copy.deepcopy(given.kwargs))
        if blocks:
            self.offload(model, optimizer, blocks)
        losses = []

        def closure():
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            return loss

        try:
            for step in range(4):
                x = torch.randn(8, 96, generator=torch.Generator(support.DEVICE).manual_seed(step))
                losses.append(float(closure()))
                if info.step_requires_closure:
                    optimizer.step(closure)
                else:
                    optimizer.step()
            state = plain(optimizer.state_dict())  # before anything waits for the last update
            return [losses, state, plain(list(model.parameters()))]
        finally:
            if blocks:
                stepwell.torch.offloaded(model).close()

    def test_every_optimizer_of_torchs_data_base(self):
        counts = collections.Counter()
        for info in optim_db:
            name = info.optim_cls.__name__
            for given in info.optim_inputs_func(device=support.DEVICE):
                # With foreach and fused kernels round in another order; capturable is for GPUs.
                unlike = {"foreach", "fused", "capturable", "differentiable"} & set(given.kwargs)
                if name in FAILS_IN_PLAIN_TORCH or unlike:
                    continue
                for blocks in 16, 512:  # tight, and all of it
                    with self.subTest(name, given=given.desc, blocks=blocks):
                        if name in REFUSED:
                            with self.assertRaisesRegex(TypeError, REFUSED[name]):
                                self.optimizer_steps(info, given, blocks)
                            counts["refused"] += 1
                            continue
                        right = self.optimizer_steps(info, given, 0)
                        got = self.optimizer_steps(info, given, blocks)
                        self.assertEqual(difference(right, got, name), "")
                        counts["equal"] += 1
        print(dict(counts))
        self.assertGreaterEqual(counts["equal"], 70)


if __name__ == "__main__":
    support.main()
