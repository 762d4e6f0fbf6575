# SPDX-License-Identifier: Apache-2.0
"""A tensor of ones, for the arrays of docs/python.md."""
import stepwell

with stepwell.Runtime(host_bytes=8 << 20) as runtime:
    w = runtime.create("w", 1000, "f32")
    w.fill(1.0)
    BLOCK
    assert total == 500.0
    assert runtime.tier_stats("host").open_views == 0
