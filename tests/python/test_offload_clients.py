# SPDX-License-Identifier: Apache-2.0
"""stepwell.torch.offload() in programs of others: their models and training loops as they are.

Models are made from configurations, with random weights; nothing is loaded. Skipped by package.
"""
import importlib.util
import os
import threading
import unittest
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from test_offload import HAS_TORCH, Run, own_steps, stack_loss  # noqa: E402

if HAS_TORCH:
    import torch
    from test_offload import Stack
    from torch import nn


def needs(*packages):
    """Skips a test where one of the packages is not installed."""
    def decorate(test):
        for package in ("torch",) + packages:
            if importlib.util.find_spec(package) is None:
                return unittest.skip(f"{package} is not installed (./dev setup --torch)")(test)
        return test
    return decorate


class Loops(unittest.TestCase):
    def setUp(self):
        if HAS_TORCH:
            torch.set_num_threads(1)
            warnings.simplefilter("ignore")


@needs()
class Programs(Loops):
    def test_a_module_moved_to_the_device_it_is_on_stays_as_it_is(self):
        with Run(lambda: Stack(layers=12), own_steps, 24) as run:  # 6 MiB in 1.5
            self.assertIs(run.model.to("cpu"), run.model)
            run.model.float().cpu()
            run.step(0, stack_loss)

    def test_assigned_data_is_what_is_trained_and_given_back(self):
        class Halves(nn.Linear):
            def forward(self, x):
                self.weight.data = self.weight.data * 0.5
                return super().forward(x)

        def train(blocks):
            with Run(lambda: nn.Sequential(Halves(128, 128), nn.Linear(128, 128)), own_steps,
                     blocks) as run:
                found = []
                for step in range(3):
                    for parameter in run.model.parameters():
                        parameter.data = parameter.data * 0.9
                    found.append(run.step(step, stack_loss))
            return found + [p.sum().item() for p in run.model.parameters()]
        self.assertEqual(train(16), train(0))

    def test_two_threads_may_call_it(self):
        def call(blocks):
            with Run(Stack, own_steps, blocks) as run:
                run.model.eval()
                found = [[], []]
                both = threading.Barrier(2)

                def work(at):
                    data = torch.linspace(-1 - at, 1, 4 * 128).reshape(4, 128)
                    with torch.no_grad():
                        for _ in range(40):
                            both.wait(60)
                            try:
                                found[at].append(run.model(data).sum().item())
                            except BaseException:
                                both.abort()
                                raise
                threads = [threading.Thread(target=work, args=(at,)) for at in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return found
        self.assertEqual(call(48), call(0))


if __name__ == "__main__":
    unittest.main()
