# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.estimate(): its budgets are those with which offload() and a step work.

Skipped where PyTorch is not installed.
"""
import importlib.util
import json
import os
import subprocess
import tempfile
import unittest
from unittest import mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import offload_programs as programs
    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK
LARGE = """
def make():
    model = nn.Sequential(nn.Embedding(2000, 96), nn.Linear(96, 96),
                          nn.Linear(96, 2000, bias=False))
    model[2].weight = model[0].weight
    return model

def loss(model, seed):
    ids = (draw(seed, 2, 8).abs() * 500).long() % 2000
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
"""
NESTED = """
class Nested(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(128))
        self.below = Nested(depth - 1) if depth else nn.Linear(128, 128)

    def forward(self, x):
        return self.below(x @ self.weight) @ self.weight

def make():
    return Nested(3)

def loss(model, seed):
    return model(draw(seed, 4, 128)).square().mean()
"""


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Estimate(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def made(self, text, optimizer, device="cpu"):
        define, make, _ = programs.OPTIMIZERS[optimizer]
        names = {"DEVICE": support.DEVICE}
        exec(programs._HEAD + text + define, names)
        torch.manual_seed(0)
        with torch.device(device):
            model = names["make"]()
        names["params"] = list(model.parameters())
        return model, eval(make, names), names["loss"]

    def estimate(self, text, optimizer, **options):
        model, optimizer, _ = self.made(text, optimizer)
        return stepwell.torch.estimate(model, optimizer, block_bytes=BLOCK, **options)

    def trains(self, text, optimizer, device_bytes):
        """Whether two steps fit, whether all is resident, and the budget of nvme."""
        model, optimizer, loss = self.made(text, optimizer)
        with tempfile.TemporaryDirectory(prefix="stepwell-estimate-", dir=".") as directory:
            try:
                stepwell.torch.offload(
                    model, optimizer, device_bytes=device_bytes, block_bytes=BLOCK, timeout=20,
                    nvme=stepwell.Nvme(directory, 32 << 20, driver_options="allow_tmpfs=1"))
            except stepwell.BudgetError:
                return False, False
            with stepwell.torch.offloaded(model) as tiers:
                try:
                    for step in range(2):
                        loss(model, step).backward()
                        optimizer.step()
                        optimizer.zero_grad()
                    tiers.runtime.drain()
                    return True, tiers.resident
                except (stepwell.BudgetError, stepwell.BusyError):
                    return False, False

    def test_the_least_and_the_resident_budgets_are_those_of_offload(self):
        refused = tried = 0
        models = {**programs.MODELS, "large": LARGE, "nested": NESTED}
        del models["scalars"]  # its empty gradient is not for own code
        for name, text in models.items():
            for optimizer in "SGD", "AdamW", "AMSGrad":
                with self.subTest(name, optimizer=optimizer):
                    found = self.estimate(text, optimizer)
                    self.assertEqual(found.least_device_bytes % BLOCK, 0)
                    self.assertTrue(self.trains(text, optimizer, found.least_device_bytes)[0])
                    less = self.trains(text, optimizer, found.least_device_bytes - BLOCK)
                    tried, refused = tried + 1, refused + (not less[0])
                    self.assertEqual(self.trains(text, optimizer, found.resident_device_bytes),
                                     (True, True))
                    less = self.trains(text, optimizer, found.resident_device_bytes - BLOCK)
                    self.assertFalse(less[1])
        print(f"one block less was refused in {refused} of {tried}")
        # In the others, units that could be pinned together were not.
        self.assertGreater(refused, tried * 3 // 4)

    def test_nvme_bytes_are_what_offload_takes(self):
        for name in "stack", "frozen", "bf16":
            for optimizer in "AdamW", "AMSGrad":
                model, made, _ = self.made(programs.MODELS[name], optimizer)
                found = stepwell.torch.estimate(model, made, block_bytes=BLOCK)
                with tempfile.TemporaryDirectory(prefix="stepwell-estimate-", dir=".") as directory:
                    opened = []

                    class Runtime(stepwell.Runtime):
                        def __init__(self, *, nvme, **options):
                            opened.append(nvme[0].budget_bytes)
                            super().__init__(nvme=stepwell.Nvme(
                                directory, nvme[0].budget_bytes,
                                driver_options="allow_tmpfs=1"), **options)

                    with mock.patch("stepwell.torch._place.Runtime", Runtime):
                        stepwell.torch.offload(model, made, device_bytes=32 * BLOCK,
                                               block_bytes=BLOCK, nvme=directory)
                    stepwell.torch.offloaded(model).close()
                self.assertEqual(opened, [found.nvme_bytes + BLOCK])  # one for the superblock

    def test_a_model_of_the_device_meta_has_the_same_figures(self):
        for name in "tied", "attention", "bf16":
            model, optimizer, _ = self.made(programs.MODELS[name], "AdamW", "meta")
            self.assertEqual(stepwell.torch.estimate(model, optimizer, block_bytes=BLOCK),
                             self.estimate(programs.MODELS[name], "AdamW"))

    def test_a_model_larger_than_this_machine_is_estimated(self):
        with torch.device("meta"):
            model = nn.Sequential(nn.Embedding(128256, 8192), *(
                nn.Sequential(nn.Linear(8192, 28672), nn.SiLU(), nn.Linear(28672, 8192),
                              nn.LayerNorm(8192)) for _ in range(80))).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters())
        found = stepwell.torch.estimate(model, optimizer, device_bytes="24GiB")
        count = sum(parameter.numel() for parameter in model.parameters())
        self.assertEqual((found.parameters, found.gradients, found.states),
                         (2 * count, 2 * count, 12 * count))
        self.assertGreater(found.resident_device_bytes, 16 * count)
        self.assertGreaterEqual(found.nvme_bytes, 16 * count)
        # A weight of a layer is 448 MiB, and it is computed in tiles if it has to be.
        self.assertLess(found.least_device_bytes, 448 << 20)
        self.assertEqual(found.step_read_bytes, 2 * 2 * count + 2 * 2 * count + 12 * count)
        self.assertEqual(found.step_written_bytes, 2 * 2 * count + 12 * count)
        self.assertEqual(found.device_bytes, 24 << 30)
        self.assertEqual(found.sensible_device_bytes, 8 * 128256 * 8192 * 2)  # of the embedding
        self.assertIsNone(found.drive_seconds)
        self.assertIn("`stepwell tune`", str(found))

    def test_a_device_budget_has_its_units_and_moves_nothing_if_it_holds_all(self):
        text = programs.MODELS["stack"]
        all_of_it = self.estimate(text, "AdamW", device_bytes="32MiB")
        self.assertEqual((all_of_it.units, all_of_it.step_read_bytes), (1, 0))
        tight = self.estimate(text, "AdamW", device_bytes=8 * BLOCK)
        self.assertEqual(tight.units, 5)
        self.assertGreater(tight.step_read_bytes, tight.step_written_bytes)
        self.assertIn("is not enough", str(self.estimate(text, "AdamW", device_bytes=BLOCK)))

    def test_what_offload_refuses_is_refused(self):
        model = nn.Linear(4, 4).double()
        with self.assertRaisesRegex(TypeError, "'weight' is torch.float64"):
            stepwell.torch.estimate(model)

    def test_the_time_of_the_drive_is_that_of_the_machines_profile(self):
        with tempfile.TemporaryDirectory(prefix="stepwell-estimate-", dir=".") as directory:
            place = stepwell.Nvme(directory, driver_options="allow_tmpfs=1")
            text = programs.MODELS["stack"]
            self.assertIsNone(self.estimate(text, "AdamW", device_bytes=8 * BLOCK, nvme=place,
                                            profile="").drive_seconds)
            status = os.stat(directory).st_dev
            kind, identity = subprocess.run(
                ["stat", "-f", "-c", "%T %i", directory], stdout=subprocess.PIPE, text=True,
                check=True).stdout.split()
            speed = {"request_bytes": 1 << 20, "queue_depth": 8}
            path = os.path.join(directory, "profile.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({
                    "kind": "stepwell machine profile", "format": 1,
                    "created": "2026-11-22T04:22:16Z", "by": "tune",
                    "machine": {"kernel": "1.0", "processor": "x", "cores": 1},
                    "directories": [{
                        "path": directory,
                        "device": f"{os.major(status)}:{os.minor(status)}",
                        "file_system": {"ext2/ext3": "ext4"}.get(kind, kind),
                        "file_system_id": identity.zfill(16), "driver": "posix",
                        "read": {"bytes_per_s": 1000, **speed},
                        "write": {"bytes_per_s": 500, **speed}}]}, file)
            os.chmod(path, 0o600)
            found = self.estimate(text, "AdamW", device_bytes=8 * BLOCK, nvme=place, profile=path)
        self.assertAlmostEqual(
            found.drive_seconds, found.step_read_bytes / 1000 + found.step_written_bytes / 500)


if __name__ == "__main__":
    support.main()
