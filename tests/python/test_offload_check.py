# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.check(): equal loops are found equal, and the first difference is named.

Skipped where PyTorch is not installed.
"""
import copy
import importlib.util
import random
import tempfile
import unittest
from unittest import mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch
    from stepwell.torch import _kinds, _records


def made(optimizer="AdamW", dropout=0.0):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(96, 96), nn.BatchNorm1d(96), nn.Dropout(dropout),
                          nn.Linear(96, 96))
    return model, getattr(torch.optim, optimizer)(model.parameters(), lr=1e-2)


def step(model, optimizer, batch):
    generator = torch.Generator(support.DEVICE).manual_seed(batch)
    x = torch.randn(4, 96, generator=generator)
    loss = model(x).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad()
    return loss


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Check(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        directory = tempfile.TemporaryDirectory(prefix="stepwell-check-", dir=".")
        self.addCleanup(directory.cleanup)
        self.options = {"device_bytes": 8 * support.BLOCK, "block_bytes": support.BLOCK,
                        "nvme": stepwell.Nvme(directory.name, 8 << 20,
                                              driver_options="allow_tmpfs=1")}

    def check(self, step, model, optimizer, **options):
        return stepwell.torch.check(step, model, optimizer, **self.options, **options)

    def test_a_loop_with_dropout_and_buffers_is_equal(self):
        for optimizer in "AdamW", "RMSprop":
            with self.subTest(optimizer):
                found = self.check(step, *made(optimizer, 0.3))
                self.assertTrue(found, found)
                self.assertEqual(found.steps, 3)
                # 5 outputs, 6 gradients, a loss, 6 parameters, 3 buffers, a group, and states.
                self.assertGreater(found.compared, 3 * 22)
                self.assertIn("3 steps are equal", str(found))

    def test_the_model_the_optimizer_and_random_states_stay_as_they_were(self):
        model, optimizer = made(dropout=0.3)
        step(model, optimizer, 0)
        before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        states = torch.get_rng_state(), random.getstate()
        self.assertTrue(self.check(step, model, optimizer, batches=2))
        after = model.state_dict(), optimizer.state_dict()
        for name, value in before[0].items():
            self.assertTrue(torch.equal(value, after[0][name]), name)
        for at, state in before[1]["state"].items():
            for name, value in state.items():
                self.assertTrue(torch.equal(value, after[1]["state"][at][name]), name)
        self.assertTrue(torch.equal(states[0], torch.get_rng_state()))
        self.assertEqual(states[1], random.getstate())
        self.assertRaises(KeyError, stepwell.torch.offloaded, model)

    def test_batches_are_given_to_both_runs(self):
        given = []

        def keeps(model, optimizer, batch):
            given.append(batch.clone())
            batch.zero_()  # of a copy
            return step(model, optimizer, int(given[-1]))

        found = self.check(keeps, *made(), batches=iter([torch.tensor(5), torch.tensor(7)]))
        self.assertTrue(found, found)
        self.assertEqual([int(each) for each in given], [5, 5, 7, 7])
        with self.assertRaisesRegex(ValueError, "without batches compares nothing"):
            self.check(keeps, *made(), batches=[])

    def test_an_attribute_of_an_optimizer_is_copied(self):
        model, optimizer = made()
        optimizer.mine = 3

        def reads(model, optimizer, batch):
            return step(model, optimizer, batch), optimizer.mine

        self.assertTrue(self.check(reads, model, optimizer))

    # -- planted differences ----------------------------------------------------------------------

    def found(self, expected, step=step, pair=None, **options):
        found = self.check(step, *(pair or made()), **options)
        self.assertFalse(found)
        self.assertRegex(str(found), expected)
        return found

    def test_a_wrong_hyper_parameter_of_the_kernel_is_named_by_the_first_weight(self):
        right = _kinds._adam

        def wrong(group):
            return right({**group, "lr": group["lr"] * 1.01})

        with mock.patch.object(_kinds.KINDS[torch.optim.AdamW], "hyper", wrong):
            found = self.found(r"^step 0: after it: parameter '0.weight': \d+ of 9216 elements "
                               r"differ; element 0 is .* in plain torch, .* offloaded$")
        self.assertEqual(found.steps, 1)

    def test_a_gradient_that_arrives_wrong_is_named(self):
        right = _records.Record.add_gradient

        def wrong(self, grad):
            right(self, grad * 2 if self.name == "3.weight" else grad)

        def plain(model, optimizer, batch):
            model(torch.ones(4, 96)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        with mock.patch.object(_records.Record, "add_gradient", wrong):
            self.found(r"^step 0: call 1 of optimizer.step\(\): the gradient of parameter "
                       r"'3.weight'", plain)

    def test_a_module_that_computes_other_values_is_named_with_its_call(self):
        class Reads(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(96, 96)

            def forward(self, x):
                return self.linear(x) + type(self.linear.weight).__name__.count("Present")

        def twice(model, optimizer, batch):
            with torch.no_grad():
                model[0](torch.zeros(1, 96))
            return step(model, optimizer, batch)

        model = nn.Sequential(nn.Linear(96, 96), Reads(), nn.Linear(96, 96))
        pair = model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.found(r"^step 0: call 1 of module '1': what it returns: 384 of 384", twice, pair)

    def test_a_state_and_a_random_number_that_only_one_run_has_are_named(self):
        def draws(model, optimizer, batch):
            if hasattr(optimizer, "_stepwell"):
                torch.rand(1)
            return step(model, optimizer, batch)

        name = "torch" if support.DEVICE == "cpu" else support.DEVICE
        self.found(f"^step 0: after it: the random state of {name}", draws)

    def test_a_loop_that_goes_another_way_offloaded_is_named(self):
        def skips(model, optimizer, batch):
            if batch == 1 and hasattr(optimizer, "_stepwell"):
                return None
            return step(model, optimizer, batch)

        self.found(r"^step 1: call 1 of module '0': what it returns in plain torch, and offloaded "
                   r"after it: parameter '0.weight'$", skips)

    def test_a_refusal_is_raised_and_the_tiers_are_closed(self):
        def reads(model, optimizer, batch):
            step(model, optimizer, batch)
            return copy.deepcopy(optimizer)

        with self.assertRaisesRegex(TypeError, "use state_dict"):
            self.check(reads, *made())


if __name__ == "__main__":
    support.main()
