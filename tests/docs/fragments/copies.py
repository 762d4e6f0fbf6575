# SPDX-License-Identifier: Apache-2.0
"""A tensor of ones, for the copies of docs/python.md."""
import numpy
import stepwell

with stepwell.Runtime(host_bytes=8 << 20) as runtime:
    w = runtime.create("w", 1000, "f32")
    w.fill(1.0)
    BLOCK
    assert (out == 1).all() and (bits == 0x3F80).all()
