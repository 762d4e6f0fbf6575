# SPDX-License-Identifier: Apache-2.0
"""Two linear layers, for the step of docs/coming-from-deepspeed.md."""
import numpy

import stepwell


class Layer:
    def __init__(self, runtime, optimizer, number):
        self.w = runtime.create(f"w{number}", (64, 64), "f32", role="param")
        self.w_grad = runtime.create(f"w{number}.grad", (64, 64), "f32", role="grad")
        self.w.write(numpy.eye(64, dtype=numpy.float32))
        optimizer.add(self.w, self.w_grad)

    def forward(self, w, x):
        self.x = x
        return x @ w

    def backward(self, w, error, gradient):
        gradient += self.x.T @ error
        return error @ w.T


with stepwell.Runtime(devices=16 << 20, host_bytes=16 << 20,
                      nvme=stepwell.Nvme(".", 64 << 20, driver_options="allow_tmpfs=1")) as runtime:
    optimizer = runtime.adamw()
    layers = [Layer(runtime, optimizer, number) for number in range(2)]
    train = runtime.phase("train")
    x = numpy.ones((4, 64), numpy.float32)
    error = numpy.ones((4, 64), numpy.float32)
    BLOCK
    runtime.drain()
    assert optimizer.result().updated == 2
    for layer in layers:
        assert not (layer.w.read() == numpy.eye(64)).any()
