# SPDX-License-Identifier: Apache-2.0
"""A tensor of twos, for the coroutine of docs/python.md."""
import asyncio

import stepwell

with stepwell.Runtime(host_bytes=8 << 20) as runtime:
    w = runtime.create("w", 1000, "f32")
    w.fill(2.0)
    BLOCK
    assert asyncio.run(norm(w)) == 2000.0
