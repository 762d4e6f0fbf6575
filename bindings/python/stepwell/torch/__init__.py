# SPDX-License-Identifier: Apache-2.0
"""PyTorch models larger than their memory, in an unchanged training loop.

    model, optimizer = stepwell.torch.offload(model, optimizer, device_bytes="2GiB", nvme="/fast")
"""
from ._callback import report_callback
from ._check import Checked, check
from ._estimate import Estimate, estimate
from ._files import load_safetensors, save_safetensors
from ._init import Tiers, init
from ._offload import Offload, offload, offloaded, save_on_tiers
from ._progress import Progress

__all__ = ["Checked", "Estimate", "Offload", "Progress", "Tiers", "check", "estimate", "init",
           "load_safetensors", "offload", "offloaded", "report_callback", "save_on_tiers",
           "save_safetensors"]
