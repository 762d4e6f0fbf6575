# SPDX-License-Identifier: Apache-2.0
"""Functions of torch without a public name, used by several modules."""
from __future__ import annotations

import functools
from typing import Any

import torch

_autograd = torch._C._autograd  # type: ignore[attr-defined]
_frames = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
pop = _autograd._pop_saved_tensors_default_hooks


def not_compiled(function: Any, callees: bool = False) -> None:
    """Exclude a function from torch.compile; functions that it calls are traced again, or not:
    callees."""
    function._torchdynamo_disable = True
    actions = _frames._FrameAction
    _frames.set_code_exec_strategy(function.__code__, _frames._FrameExecStrategy(
        actions.SKIP, actions.SKIP if callees else actions.DEFAULT))


def ends_graph(function: Any) -> Any:
    """A function inside of which nothing is compiled."""
    set_frame = _frames.set_eval_frame

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        compiler = set_frame(None)
        try:
            return function(*args, **kwargs)
        finally:
            if compiler is not None:
                set_frame(compiler)

    not_compiled(call)
    return call
