# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch: clip_grad_norm_(), GradScaler and other products of whole gradients wait for the
update, with the bits of plain torch and no gradient written in between.

Skipped where PyTorch is not installed.
"""
import unittest

import support
import test_offload
from test_offload import HAS_TORCH, Run, Stack, stack_loss

if HAS_TORCH:
    import torch

    import stepwell
    import stepwell.torch


def adamw(parameters):
    return torch.optim.AdamW(parameters, 1e-2)


def sgd(parameters):
    return torch.optim.SGD(parameters, 1e-2, momentum=0.9)


def clip(run, _):
    return torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.01).item()


def clip_one_by_one(run, _):
    return torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.01, foreach=False).item()


def unscale(run, seed):
    """As GradScaler does. In the second step an element is not finite."""
    made = torch.amp.GradScaler(support.DEVICE, init_scale=8.0)
    scaler = run.__dict__.setdefault("scaler", made)
    if scaler._scale is None:
        scaler.scale(torch.ones(()))
    if seed == 1:
        run.model.layers[1][1].bias.grad[3] = float("inf")
    scaler.unscale_(run.optimizer)
    run.infinite = sum(scaler._per_optimizer_states[id(run.optimizer)]["found_inf_per_device"]
                       .values()).item()
    scaler.update()
    return run.infinite


def unscale_and_clip(run, seed):
    return unscale(run, seed), clip(run, seed)


def by_number(run, seed):
    """Factors of all kinds, some of which no update takes."""
    factors = [0.3, torch.tensor(1 / 3), 0.0, float("inf"), float("nan"), -2, 1e-45,
               torch.tensor(0.7, dtype=torch.float64), torch.full((1,), 0.5), 1e300]
    for at, parameter in enumerate(run.model.parameters()):
        parameter.grad.mul_(factors[(at + seed) % len(factors)])


def read_after(run, seed):
    clip(run, seed)
    return [parameter.grad.double().sum().item() for parameter in run.model.parameters()]


def twice(run, seed):
    clip(run, seed)
    return torch.nn.utils.clip_grad_norm_(run.model.parameters(), 0.003).item()


def parts(run, seed):
    """Products of views, and of what is not all of a gradient."""
    clip(run, seed)
    for parameter in run.model.parameters():
        parameter.grad[:1].mul_(0.5)
        parameter.grad.view(-1).mul_(0.9)


def more_gradients(run, seed):
    clip(run, seed)
    stack_loss(run.model).backward()


def replaced(run, seed):
    clip(run, seed)
    for parameter in run.model.parameters():
        parameter.grad.copy_(torch.full_like(parameter.grad, 1e-3))


def kept_over_zero_grad(run, seed):
    clip(run, seed)
    kept = [parameter.grad for parameter in run.model.parameters()]
    run.optimizer.zero_grad()
    stack_loss(run.model).backward()
    return [grad.double().sum().item() for grad in kept]


EDITS = (clip, clip_one_by_one, unscale, unscale_and_clip, by_number, read_after, twice, parts,
         more_gradients, replaced, kept_over_zero_grad)


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Scaling(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(2)

    def run_with(self, edit, optimizer, blocks, **options):
        """What four steps with the edit between backward and step() have found."""
        found = []
        with Run(Stack, optimizer, blocks, **options) as run:
            for seed in range(4):
                torch.manual_seed(seed)
                loss = stack_loss(run.model)
                loss.backward()
                found.append((loss.item(), edit(run, seed)))
                run.optimizer.step()
                run.optimizer.zero_grad()
            found += [parameter.detach().double().sum().item()
                      for parameter in run.model.parameters()]
        return found

    def test_each_edit_has_the_bits_of_plain_torch(self):
        for edit in EDITS:
            for optimizer in (adamw, sgd):
                with self.subTest(edit=edit.__name__, optimizer=optimizer.__name__):
                    plain = self.run_with(edit, optimizer, 0)
                    ours = self.run_with(edit, optimizer, 64)
                    self.assertEqual(repr(ours), repr(plain))  # NaNs too

    def test_kept_gradients_keep_the_product(self):
        def edit(run, seed):
            clip(run, seed)
            run.optimizer.step()
            return [parameter.grad.double().sum().item() for parameter in run.model.parameters()]
        plain = self.run_with(edit, sgd, 0)
        self.assertEqual(self.run_with(edit, sgd, 64, keep_gradients=True), plain)

    def written(self, edit):
        """The fetches of gradients to be written during the edit."""
        with Run(Stack, adamw, 64) as run:
            torch.manual_seed(0)
            stack_loss(run.model).backward()
            runtime = stepwell.torch.offloaded(run.model).runtime
            fetch, names = runtime.fetch, []

            def noted(tensor, access=stepwell.Access.READ, *rest, **options):
                if access != stepwell.Access.READ:
                    names.append(tensor.name)
                return fetch(tensor, access, *rest, **options)

            runtime.fetch = noted
            try:
                edit(run, 0)
            finally:
                del runtime.fetch
            return names

    def test_no_gradient_is_written_before_the_update(self):
        self.assertEqual(self.written(clip), [])
        self.assertEqual(self.written(unscale), [])
        self.assertEqual(len(self.written(twice)), 6 * 6)  # the product of the first
        self.assertNotEqual(self.written(replaced), [])

    def test_an_optimizer_with_its_own_code_finds_the_products_made(self):
        plain = self.run_with(clip, test_offload.own_steps, 0)
        self.assertEqual(self.run_with(clip, test_offload.own_steps, 64), plain)


if __name__ == "__main__":
    support.main()
