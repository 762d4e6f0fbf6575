# SPDX-License-Identifier: Apache-2.0
"""A model and its batches, for the PyTorch program of docs/coming-from-deepspeed.md."""
import torch

import stepwell.torch

torch.manual_seed(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
batches = [torch.randn(4, 256) for _ in range(4)]
before = model[0].weight.detach().clone()
BLOCK
assert not torch.equal(model[0].weight, before)
stepwell.torch.offloaded(model).close()
