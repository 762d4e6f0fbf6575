# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C at every place where the interpreter runs signal handlers inside the package: training
goes on from there with the bits of plain PyTorch, and close() returns the weights.

Skipped where PyTorch is not installed.
"""
import dis
import importlib.util
import os
import sys
import tempfile
import unittest
import unittest.mock

import support

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    import torch
    from torch import nn

    import stepwell
    import stepwell.torch

BLOCK = support.BLOCK
_PACKAGE = os.path.dirname(stepwell.__file__) if HAS_TORCH else ""
_CALLS = {code for name, code in dis.opmap.items() if name.startswith("CALL")}
_JUMPS = {code for name, code in dis.opmap.items() if name.startswith("JUMP_BACKWARD")
          or name == "JUMP_ABSOLUTE"}


class Interrupt:
    """Raises KeyboardInterrupt at the n-th place: the begin of a function of the package, after a
    call, or before a jump back. n < 0: counts them. Finalisers are left out, since Python swallows
    what they raise."""

    def __init__(self, n):
        self.n, self.count, self.where = n, 0, None
        self._last = {}

    def __enter__(self):
        sys.settrace(self._called)
        return self

    def __exit__(self, *_):
        sys.settrace(None)
        # The place after a call is one opcode later than a signal's: `with` may not end any more.
        torch._C._set_torch_function_state(torch._C._TorchFunctionState.ENABLED)
        torch.set_grad_enabled(True)

    def _called(self, frame, event, _):
        outer = frame
        while outer is not None:
            if outer.f_code.co_name in ("__del__",):
                return None
            outer = outer.f_back
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._place(frame)
        return self._inside

    def _inside(self, frame, event, _):
        if event == "opcode":
            code = frame.f_code.co_code[frame.f_lasti]
            if self._last.get(frame) in _CALLS or code in _JUMPS:
                self._place(frame)
            self._last[frame] = code
        elif event == "return":
            self._last.pop(frame, None)
        return self._inside

    def _place(self, frame):
        if self.count == self.n:
            self.count += 1
            self.where = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
            sys.settrace(None)
            self._last.clear()  # of frames that would live on, with what they refer to
            raise KeyboardInterrupt
        self.count += 1


if HAS_TORCH:
    def layers(count=2, width=128):
        torch.manual_seed(1)
        return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))

    class Own(torch.optim.Optimizer):
        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        state = self.state[p]
                        if not state:
                            state["sum"] = torch.zeros_like(p)
                        state["sum"].mul_(0.5).add_(p.grad)
                        p.add_(state["sum"], alpha=-group["lr"])

    def step(model, optimizer, seed):
        torch.manual_seed(seed)
        loss = model(torch.randn(4, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()


def offload(model, optimizer, blocks, directory, **options):
    stepwell.torch.offload(
        model, optimizer, device_bytes=blocks * BLOCK, block_bytes=BLOCK, thread_count=2,
        timeout=10, nvme=stepwell.Nvme(directory, (1 << 20) + 64 * BLOCK,
                                       driver_options="allow_tmpfs=1"), **options)


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@unittest.skipUnless(HAS_TORCH, "PyTorch is not installed (./dev setup --torch)")
class Interrupts(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)

    def interrupted(self, blocks, work, every=3):
        """Interrupt work(model, optimizer) at each place: each parameter is as before or as after
        it, and the next step has the loss of plain torch. Returns the number of places."""
        plain, model = layers(), layers()
        made = [torch.optim.SGD(each.parameters(), 0.1) for each in (plain, model)]
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            offload(model, made[1], blocks, directory)
            tiers = stepwell.torch.offloaded(model)
            for seed in range(3):
                self.assertEqual(step(model, made[1], seed), step(plain, made[0], seed))
            n = 0
            while True:
                with Interrupt(n) as interrupt:
                    try:
                        work(model, made[1])
                    except KeyboardInterrupt:
                        pass
                old = weights(plain)
                work(plain, made[0])
                if interrupt.where is None:
                    break
                at = f"interrupt {n} at {interrupt.where}"
                try:
                    made[1].zero_grad()
                    with torch.no_grad():
                        for mine, theirs, before in zip(weights(model), plain.parameters(), old):
                            self.assertTrue(torch.equal(mine, theirs)
                                            or torch.equal(mine, before), at)
                            theirs.copy_(mine)
                    self.assertEqual(step(model, made[1], n), step(plain, made[0], n), at)
                except Exception as error:
                    raise AssertionError(f"after {at}") from error
                self.assertFalse(any(unit.depth for unit in tiers.units), at)
                n += every
            tiers.close()
        for mine, theirs in zip(model.parameters(), plain.parameters()):
            self.assertTrue(torch.equal(mine, theirs))
        return n

    def test_a_step_beyond_the_budget_is_interrupted_anywhere(self):
        self.assertGreater(self.interrupted(5, lambda *made: step(*made, 5), every=1), 300)

    def test_a_step_of_a_resident_model_is_interrupted_anywhere(self):
        self.assertGreater(self.interrupted(32, lambda *made: step(*made, 5)), 300)

    def test_an_interrupt_after_a_release_does_not_make_another(self):
        release = stepwell._views._release

        def interrupted(*args):
            release(*args)
            raise KeyboardInterrupt
        with stepwell.Runtime(devices=16 * BLOCK, block_bytes=BLOCK, probe=False) as runtime:
            tensor = runtime.create("x", 16)
            tensor.fill(1.0)
            view = tensor.fetch()
            with unittest.mock.patch("stepwell._views._release", interrupted), \
                    self.assertRaises(KeyboardInterrupt):
                view.release()
            view.release()
            self.assertEqual(runtime.tier_stats("device").open_views, 0)

    def test_an_interrupt_after_a_tensor_was_made_leaves_nothing_in_the_way(self):
        for last in range(4):  # a gradient and a state of each layer
            plain, model = layers(), layers()
            made = [Own(each.parameters(), 0.1) for each in (plain, model)]
            with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
                offload(model, made[1], 5, directory)
                tiers = stepwell.torch.offloaded(model)
                room, left = tiers.room, [last]

                def interrupted(*args, room=room, left=left, **kwargs):
                    result = room(*args, **kwargs)
                    left[0] -= 1
                    if left[0] == -1:
                        raise KeyboardInterrupt
                    return result
                with unittest.mock.patch.object(tiers, "room", interrupted), \
                        self.assertRaises(KeyboardInterrupt):
                    step(model, made[1], 0)
                made[1].zero_grad()
                made[1].state.clear()
                with torch.no_grad():
                    for mine, theirs in zip(weights(model), plain.parameters()):
                        theirs.copy_(mine)
                for seed in 1, 2:
                    self.assertEqual(step(model, made[1], seed), step(plain, made[0], seed))
                tiers.close()

    def test_an_interrupt_at_the_end_of_an_access_is_not_hidden(self):
        model = layers()
        optimizer = Own(model.parameters(), 0.1)
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            offload(model, optimizer, 5, directory)
            release = stepwell._views.View.release

            def interrupted(*args):
                release(*args)
                raise KeyboardInterrupt
            step(model, optimizer, 0)
            model(torch.randn(4, 128)).sum().backward()
            with unittest.mock.patch.object(stepwell._views.View, "release", interrupted), \
                    self.assertRaises(KeyboardInterrupt):
                optimizer.step()
            stepwell.torch.offloaded(model).close()

    def test_an_interrupt_at_the_end_of_a_hold_of_a_pass_leaves_no_view(self):
        plain, model = layers(), layers()
        made = [torch.optim.SGD(each.parameters(), 0.1) for each in (plain, model)]
        with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
            offload(model, made[1], 5, directory)
            tiers = stepwell.torch.offloaded(model)
            views = type(tiers.units[1].views)
            release = views.release

            def interrupted(self, *args):
                if torch._C._current_graph_task_id() >= 0:
                    raise KeyboardInterrupt
                release(self, *args)
            with unittest.mock.patch.object(views, "release", interrupted), \
                    self.assertRaises(KeyboardInterrupt):
                step(model, made[1], 0)
            made[1].zero_grad()
            self.assertEqual(weights(model)[0].tolist(), weights(plain)[0].tolist())
            self.assertEqual(step(model, made[1], 1), step(plain, made[0], 1))
            tiers.close()

    def test_reads_and_writes_of_weights_are_interrupted_anywhere(self):
        def work(model, _):
            for parameter in model.parameters():
                parameter.data.div_(parameter.norm().item())
            return model.state_dict()
        self.assertGreater(self.interrupted(5, work), 100)

    def test_a_gradient_of_which_nothing_was_added_is_none(self):
        for early in False, True:
            model = layers()
            optimizer = torch.optim.RMSprop(model.parameters(), 1e-3)
            with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
                offload(model, optimizer, 5, directory, update_in_backward=early)
                tiers = stepwell.torch.offloaded(model)
                with unittest.mock.patch.object(type(tiers.gradients), "reduce",
                                                side_effect=KeyboardInterrupt), \
                        self.assertRaises(KeyboardInterrupt):
                    step(model, optimizer, 0)
                before = weights(model)
                optimizer.step()
                optimizer.zero_grad()
                for one, other in zip(weights(model), before):
                    self.assertTrue(torch.equal(one, other))
                step(model, optimizer, 1)
                self.assertFalse(torch.equal(weights(model)[0], before[0]))
                tiers.close()

    def test_an_interrupted_close_can_be_repeated(self):
        n, where = 0, ""
        while where is not None:
            plain, model = layers(), layers()
            made = [torch.optim.SGD(each.parameters(), 0.1) for each in (plain, model)]
            with tempfile.TemporaryDirectory(prefix="stepwell-offload-", dir=".") as directory:
                offload(model, made[1], 5, directory)
                tiers = stepwell.torch.offloaded(model)
                self.assertEqual(step(model, made[1], 1), step(plain, made[0], 1))
                with Interrupt(n) as interrupt:
                    try:
                        tiers.close()
                    except KeyboardInterrupt:
                        pass
                where = interrupt.where
                tiers.close()
            for mine, theirs in zip(model.parameters(), plain.parameters()):
                self.assertIs(type(mine), nn.Parameter, where)
                self.assertTrue(torch.equal(mine, theirs), where)
            n += 7
        self.assertGreater(n, 100)


if __name__ == "__main__":
    unittest.main()
