# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not fit together, for the errors of docs/python.md."""
import stepwell

nvme = stepwell.Nvme(".", 64 << 20, driver_options="allow_tmpfs=1")
with stepwell.Runtime(host_bytes=8 << 20, nvme=nvme) as runtime:
    layer = [runtime.create(f"w{number}", 1 << 20, "f32") for number in range(4)]
    for tensor in layer:
        tensor.fill(1.0)
    views = None
    BLOCK
    assert views is None
