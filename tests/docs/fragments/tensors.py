# SPDX-License-Identifier: Apache-2.0
"""A tensor of ones, for another library's tensors of docs/python.md."""
import stepwell
import torch

with stepwell.Runtime(host_bytes=8 << 20) as runtime:
    w = runtime.create("w", 1000, "f32")
    w.fill(1.0)
    BLOCK
    assert float(total) == 500.0
    assert runtime.tier_stats("host").open_views == 0
