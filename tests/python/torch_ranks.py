# SPDX-License-Identifier: Apache-2.0
"""Functions of a test that run as the ranks of a torch.distributed group, over Gloo, each in a
process of its own. These are forked from one that has imported PyTorch, which takes seconds."""
import atexit
import importlib
import json
import multiprocessing
import multiprocessing.forkserver
import os
import tempfile
import warnings
from unittest import mock

# The ranks inherit these: Gloo uses the loopback interface, whatever the host's name resolves to.
SETTINGS = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["torch", "torch.distributed"])
# The server is waited for, so that its processor time and its ranks' count as this test's.
atexit.register(multiprocessing.forkserver._forkserver._stop)


def _run(claim, module, directory, rank, size):
    for number, name in ((1, "out"), (2, "errors")):
        file = os.open(os.path.join(directory, f"{name}-{rank}"), os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    from torch import distributed
    store = "file://" + os.path.join(directory, "store")
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    print(json.dumps(getattr(importlib.import_module(module), claim)(rank, size)))
    distributed.destroy_process_group()


def run_ranks(claim, size=2, module="test_torch"):
    """(status, what it printed, its errors) of each rank, which calls `claim` of the module."""
    with tempfile.TemporaryDirectory(prefix="stepwell-torch-", dir=".") as directory:
        directory = os.path.abspath(directory)
        ranks = [_forking.Process(target=_run, args=(claim, module, directory, rank, size))
                 for rank in range(size)]
        with mock.patch.dict(os.environ, SETTINGS):
            for rank in ranks:
                rank.start()
        found = []
        for number, rank in enumerate(ranks):
            rank.join(150)
            if rank.is_alive():
                rank.kill()
                rank.join()
            texts = []
            for name in ("out", "errors"):
                with open(os.path.join(directory, f"{name}-{number}"), encoding="utf-8") as file:
                    texts.append(file.read())
            found.append((rank.exitcode, *texts))
            rank.close()
        return found
