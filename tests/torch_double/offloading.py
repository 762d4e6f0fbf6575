# SPDX-License-Identifier: Apache-2.0
"""Tiers of the tests for models on the device `late`: the module, and pressure on few blocks."""
import contextlib
import dataclasses
import os
import shutil
import tempfile
from unittest import mock

import double
from stepwell.torch import _accesses, _division, _offload, _place
from torch import nn

BLOCK = 2 << 20


@contextlib.contextmanager
def registered(module):
    """offload() takes models on the device, with a copy of the library's module for CUDA."""
    # A module is loaded from where nobody else can write.
    with tempfile.TemporaryDirectory(prefix="stepwell-late-", dir="/tmp") as directory:
        copied = os.path.join(directory, "libstepwell-cuda.so")
        shutil.copyfile(module, copied)
        os.chmod(copied, 0o644)
        double.register(copied)
        try:
            yield directory
        finally:
            del _place.KINDS["late"]


def apart():
    """Small parameters on the device take as many blocks as large ones: each has its own."""
    spec_of, room_of = _offload.spec_of, _division.room_of

    def alone(*args):
        spec = spec_of(*args)
        return dataclasses.replace(spec, own_blocks=spec.fixed_address)

    def room(plan, records):
        return BLOCK * len(records) if plan.block_bytes == BLOCK else room_of(plan, records)
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(_offload, "spec_of", alone))
    stack.enter_context(mock.patch.object(
        _division, "_packed", lambda made, states, records: BLOCK * len(records) * (2 + states)))
    for user in _division, _accesses:
        stack.enter_context(mock.patch.object(user, "room_of", room))
    return stack


def least(model):
    """Bytes of the device in which each module fits, if each parameter is apart."""
    return BLOCK * (2 + max(
        len([*layer.parameters()]) for layer in model.modules()
        if isinstance(layer, nn.TransformerEncoderLayer) or not [*layer.children()]))


def fifth(model):
    """Of what its parameters take on the device, a block each, if its modules fit."""
    return max(least(model), len([*model.parameters()]) // 5 * BLOCK)
