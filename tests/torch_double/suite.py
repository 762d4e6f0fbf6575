# SPDX-License-Identifier: Apache-2.0
"""A file of tests of the Python package, with all of its models on the device `late`.

usage: suite.py MODULE FILE [arguments of unittest], over the double of CUDA's driver.

New tensors and models are made on the device, and offload() gets budgets that mean the same there.
After each test the double has seen no access out of order. What cannot hold there is in ELSEWHERE.
"""
import dataclasses
import functools
import gc
import os
import runpy
import sys
import unittest

import double
import elsewhere
import offloading
import stepwell
import stepwell.torch
import support
import torch
from stepwell.torch import _check
from stepwell.torch._sizes import size_of

MODULE, FILE = sys.argv.pop(1), os.path.abspath(sys.argv.pop(1))
LARGEST = 256  # blocks of the device
ELSEWHERE = elsewhere.tests_of(os.path.basename(FILE))
run_test, plain_offload = unittest.TestCase.run, stepwell.torch.offload


@functools.wraps(plain_offload)
def offload(model, optimizer=None, **options):
    """With a block of the device for each parameter, and of such blocks the share that the budget
    is of the model. The host has room for all, if the test is not about the drive."""
    parameters = list(model.parameters())
    if not any(parameter.is_late for parameter in parameters):
        return plain_offload(model, optimizer, **options)
    nbytes = max(1, sum(each.nbytes for each in parameters))
    share = size_of(options.get("device_bytes", 0)) / nbytes
    blocks = min(round(share * len(parameters)), LARGEST)
    options.update(device_bytes=max(blocks * offloading.BLOCK, offloading.least(model)),
                   host_bytes=512 << 20)
    options.pop("block_bytes", None)
    drive, nvme_bytes = options.pop("nvme", None), options.pop("nvme_bytes", None)
    if options.get("store_name") is not None:
        options["nvme"] = drive
        if isinstance(drive, stepwell.Nvme):
            larger = drive.budget_bytes * (offloading.BLOCK // support.BLOCK)
            options["nvme"] = dataclasses.replace(drive, budget_bytes=larger)
        elif nvme_bytes is not None:
            options["nvme_bytes"] = size_of(nvme_bytes) * (offloading.BLOCK // support.BLOCK)
    return plain_offload(model, optimizer, **options)


def out_of_order():
    """What the double has seen since the last call, in one text."""
    gc.collect()
    torch.late.synchronize()
    return "\n".join(double.violations()[:5])


def run(self, result):
    """A test of ELSEWHERE fails here; all others leave the device in order."""
    name = self.id().split(".", 1)[1]
    reason = ELSEWHERE.pop(name, None)
    if reason == elsewhere.NOT_MAPPED:
        result.addSkip(self, reason)
        return result
    alone = result if reason is None else unittest.TestResult()
    run_test(self, alone)
    wrong = out_of_order()
    if reason is not None:
        wrong = ("" if wrong or alone.skipped or not alone.wasSuccessful() else
                 f"it passes on the device: '{reason}' holds no more")
        result.addSkip(self, reason)
    if wrong:
        result.addFailure(self, (AssertionError, AssertionError(wrong), None))
    return result


if __name__ == "__main__":
    with offloading.registered(MODULE), offloading.apart():
        support.DEVICE = "late"
        torch.set_default_device("late")
        stepwell.torch.offload = _check.offload = offload
        unittest.TestCase.run = run
        sys.argv[0] = FILE
        try:
            runpy.run_path(FILE, run_name="__main__")
        finally:
            torch.late.synchronize()
            if ELSEWHERE and len(sys.argv) == 1:
                sys.exit(f"no test has the names {list(ELSEWHERE)} any more")
