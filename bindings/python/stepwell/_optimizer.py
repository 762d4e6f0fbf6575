# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps streamed through the tiers."""
from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Sequence, Tuple, Union

from . import _abi, _waiting
from ._custom import GradientDtypes, kernel_over_arrays
from ._dtypes import Dtype, Memory, dtype_of, made_for, readable, writable
from ._enums import Scope
from ._library import lib
from ._tensor import Policy, Tensor, nanoseconds
from ._torch_order import square_root
from .errors import check, raised

if TYPE_CHECKING:
    from ._runtime import Runtime

ALGORITHMS = {
    "adamw": _abi.STW_OPTIMIZER_ADAMW,
    "adam": _abi.STW_OPTIMIZER_ADAM,
    "sgd": _abi.STW_OPTIMIZER_SGD,
    "adagrad": _abi.STW_OPTIMIZER_ADAGRAD,
    "lion": _abi.STW_OPTIMIZER_LION,
    "custom": _abi.STW_OPTIMIZER_CUSTOM,
}

#: The ctypes type of an update kernel: a function of (user, pointer to UpdateChunk) that returns 0
#: or an STW_ERROR_* number.
UpdateKernel: Any = dict(_abi.stw_custom_update._fields_)["update"]
UpdateChunk = _abi.stw_update_chunk


def kernel_of(update: Any) -> Any:
    """The C function, given as an address or a ctypes pointer of any prototype."""
    if isinstance(update, UpdateKernel):
        return update
    if isinstance(update, int):
        return UpdateKernel(update)
    if isinstance(update, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return ctypes.cast(update, UpdateKernel)
    raise TypeError(f"{update!r} is no function: a Python function of one UpdatePiece, a C "
                    "function of ctypes, or the address of one")


class Custom(NamedTuple):
    """An element-wise algorithm of the program."""

    update: Any  # as for kernel_of()
    states: Tuple[str, ...] = ()
    user: Union[int, ctypes.c_void_p, None] = None

    def _struct(self) -> _abi.stw_custom_update:
        names = (ctypes.c_char_p * max(len(self.states), 1))(
            *(name.encode() for name in self.states))
        return _abi.stw_custom_update.initial(
            state_count=len(self.states), state_names=names, update=kernel_of(self.update),
            user=self.user)


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters of one parameter group, used exactly as given."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    dampening: float = 0.0
    lr_decay: float = 0.0  # of Adagrad
    nesterov: bool = False
    maximize: bool = False

    def _struct(self) -> _abi.stw_hyper:
        flags = _abi.STW_HYPER_NESTEROV * self.nesterov | _abi.STW_HYPER_MAXIMIZE * self.maximize
        return _abi.stw_hyper.initial(
            flags=flags, lr=self.lr, beta1=self.beta1, beta2=self.beta2, eps=self.eps,
            weight_decay=self.weight_decay, momentum=self.momentum, dampening=self.dampening,
            lr_decay=self.lr_decay,
        )


class UpdateResult(NamedTuple):
    """The verdict of a step."""

    skipped: bool
    norm: float
    clip_coefficient: float
    nonfinite: int
    updated: int
    without_gradient: int
    early: int = 0   # of `updated`: before the verdict
    undone: int = 0  # updated before it and set back, since it was another one

    @classmethod
    def _of(cls, result: _abi.stw_update_result) -> "UpdateResult":
        return cls(bool(result.skipped), result.norm, result.clip_coefficient, result.nonfinite,
                   result.updated, result.without_gradient, result.early, result.undone)


class Optimizer:
    """From Runtime.adamw(), adam(), sgd(), adagrad(), lion() and custom().

    It exists until destroy() or the end of the runtime.
    """

    def __init__(self, runtime: "Runtime", algorithm: str, hyper: Hyper, *,
                 name: Optional[str] = None, state_dtype: Any = None,
                 state_policy: Optional[Policy] = None, ema_decay: float = 0.0,
                 durable: bool = False, torch_order: bool = False,
                 custom: Optional[Custom] = None) -> None:
        if algorithm not in ALGORITHMS:
            raise ValueError(f"no algorithm '{algorithm}'; there are {', '.join(ALGORITHMS)}")
        if not isinstance(hyper, Hyper):
            raise TypeError(f"{hyper!r} is no Hyper: give Hyper(lr=...)")
        self._runtime = runtime
        self._handle: Optional[int] = None
        self.algorithm = algorithm
        self._dtypes: GradientDtypes = {}
        policy = state_policy._struct() if state_policy is not None else None
        options = _abi.stw_optimizer_options.initial(
            algorithm=ALGORITHMS[algorithm], name=None if name is None else name.encode(),
            state_dtype=0 if state_dtype is None else dtype_of(state_dtype),
            flags=(_abi.STW_OPTIMIZER_DURABLE * durable
                   | _abi.STW_OPTIMIZER_TORCH_ORDER * torch_order),
            ema_decay=ema_decay,
        )
        if torch_order:
            roots = square_root()
            options.square_root, options.square_root_mode = roots.function, roots.mode
            options.square_root_threads = roots.set_threads
        if policy is not None:
            options.state_policy = ctypes.pointer(policy)
        if custom is not None:
            if callable(custom.update) and not isinstance(custom.update, ctypes._CFuncPtr):
                kernel = kernel_over_arrays(custom.update, custom.states, self._dtypes)
                custom = custom._replace(update=UpdateKernel(kernel))
            own = custom._struct()
            options.custom = ctypes.pointer(own)
            runtime._kernels.append((own.update, custom))  # callable until the runtime ends
        handle = ctypes.c_void_p()
        check(lib.stw_optimizer_create(runtime._use(), options, handle))
        self._handle = handle.value
        self.set_hyper(hyper)

    def _use(self) -> int:
        self._runtime._use()
        if self._handle is None:
            raise raised(_abi.STW_ERROR_CLOSED, "the optimizer was destroyed")
        return self._handle

    def add(self, parameter: Tensor, gradient: Tensor, *, group: int = 0, begin: int = 0,
            count: int = 0) -> None:
        """Add a parameter and its gradient. begin, count: a part of a packed parameter."""
        self._add([(parameter, gradient, group, begin, count)])

    def add_many(self, pairs: Sequence[Tuple[Tensor, Tensor]], *, group: int = 0) -> None:
        """Add (parameter, gradient) pairs, all or none."""
        self._add([(parameter, gradient, group, 0, 0) for parameter, gradient in pairs])

    def _add(self, entries: Sequence[Tuple[Tensor, Tensor, int, int, int]]) -> None:
        handle = self._use()
        if not entries:
            return
        array = (_abi.stw_optimizer_entry * len(entries))()
        for at, (parameter, gradient, group, begin, count) in zip(array, entries):
            at.struct_size = ctypes.sizeof(at)
            at.parameter_group = group
            at.parameter, at.gradient = parameter._use(), gradient._use()
            at.element_begin, at.element_count = begin, count
            self._dtypes[at.parameter] = int(gradient.dtype)
        check(lib.stw_optimizer_add(handle, array, len(entries)))

    def set_hyper(self, hyper: Hyper, group: int = 0) -> None:
        """Set hyper-parameters from the next step on; for a schedule, call it before each step."""
        check(lib.stw_optimizer_set_hyper(self._use(), group, hyper._struct()))

    def step(self, parameters: Optional[Sequence[Tensor]] = None, *, scale: float = 1.0,
             clip_norm: float = 0.0, norm_type: float = 2.0, skip_nonfinite: bool = False,
             keep_gradients: bool = False, wait: bool = False, measure: bool = False,
             verdict: bool = True, speculate: bool = False, reject: bool = False,
             gradients: Optional[Sequence[int]] = None,
             timeout: Optional[float] = None) -> Optional[UpdateResult]:
        """Update parameters from their gradients; the update continues after the call.

        verdict: wait until norm and skip are known, and return them. With False it returns None,
        and without clipping and skipping it returns at once: it waits only for earlier steps that
        include one of these parameters, so it can be called for each parameter when its gradient is
        complete. wait: wait until the update is complete. measure: compute only the norm.
        speculate: update before the verdict, which is the next step's that does not speculate, and
        names all such parameters; where it comes to another update, they are set back first. For
        each parameter when its gradient is complete; returns None, at once. gradients: addresses of
        the parameters' gradients in the program's memory, in place of their tensors (0: the
        tensor); they must stay there until the update is complete. Without a verdict. reject: the
        verdict of the speculative updates is that none stands: their parameters are set back, their
        gradients emptied (or kept, with keep_gradients), and nothing else is updated.
        """
        verdict = verdict and not speculate
        flags = (_abi.STW_UPDATE_SKIP_NONFINITE * skip_nonfinite
                 | _abi.STW_UPDATE_KEEP_GRADIENTS * keep_gradients
                 | _abi.STW_UPDATE_WAIT * wait | _abi.STW_UPDATE_MEASURE * measure
                 | _abi.STW_UPDATE_SPECULATE * speculate | _abi.STW_UPDATE_REJECT * reject)
        if scale == 0 or not math.isfinite(scale):
            raise ValueError(f"a scale of {scale}")
        options = _abi.stw_update_options.initial(
            flags=flags, gradient_scale=scale, clip_norm=clip_norm, norm_type=norm_type,
            timeout_ns=nanoseconds(timeout),
        )
        if parameters is not None:
            if not parameters:
                raise ValueError("no parameters; None means all of them")
            handles = (ctypes.c_void_p * len(parameters))(*(at._use() for at in parameters))
            options.parameters, options.parameter_count = handles, len(parameters)
        if gradients is not None:
            if parameters is None or len(gradients) != len(parameters):
                raise ValueError(f"{len(gradients)} gradients for the parameters, of which "
                                 f"{len(parameters or ())} are named: one for each")
            options.gradients = (ctypes.c_void_p * len(gradients))(*gradients)
        result = _abi.stw_update_result.initial() if verdict else None
        check(_waiting.call(self._runtime, lib.stw_optimizer_step, self._use(), options, result,
                            again=False))
        return None if result is None else UpdateResult._of(result)

    def result(self) -> Optional[UpdateResult]:
        """The verdict of the last step; None until it is known. Never blocks."""
        result = _abi.stw_update_result.initial()
        if check(lib.stw_optimizer_result(self._use(), result)) == _abi.STW_PENDING:
            return None
        return UpdateResult._of(result)

    def state(self, parameter: Tensor, name: str) -> Tensor:
        """A state as a tensor ("exp_avg", "ema", ...), owned by the optimizer."""
        handle = ctypes.c_void_p()
        check(lib.stw_optimizer_state(self._use(), parameter._use(), name.encode(), handle))
        return self._runtime._tensor(handle.value)

    def read_master(self, parameter: Tensor, out: Any = None, begin: int = 0, count: int = 0, *,
                    timeout: Optional[float] = None, scope: Union[Scope, str] = Scope.WHOLE) -> Any:
        """Copy the fp32 values that the next update starts from, as Tensor.read() does.

        It waits for the update of this parameter alone. The master stays in the form in which the
        library keeps it, where state(parameter, "master") makes it whole for good.
        """
        elements = parameter._range(begin, count, scope)
        if out is None:
            out, memory = made_for(elements, Dtype.F32)
            if elements == parameter._elements and hasattr(out, "reshape"):
                out = out.reshape(parameter.shape)
        else:
            memory = writable(out, Dtype.F32)
        self._copy_master(lib.stw_optimizer_read_master, parameter, memory, elements,
                          (begin, count, timeout, scope))
        return out

    def write_master(self, parameter: Tensor, source: Any, begin: int = 0, count: int = 0, *,
                     timeout: Optional[float] = None,
                     scope: Union[Scope, str] = Scope.WHOLE) -> None:
        """Set the fp32 master, and the parameter to the nearest values of its dtype."""
        parameter._has_shape_of(source, begin, count)
        self._copy_master(lib.stw_optimizer_write_master, parameter,
                          readable(source, Dtype.F32), parameter._range(begin, count, scope),
                          (begin, count, timeout, scope))

    def _copy_master(self, function: Any, parameter: Tensor, memory: Memory, elements: int,
                     part: Tuple[int, int, Optional[float], Union[Scope, str]]) -> None:
        memory = memory.on_host()._replace(dtype=memory.dtype or Dtype.F32)
        parameter._fits(memory, elements)
        check(_waiting.call(self._runtime, function, self._use(), parameter._use(), memory.pointer,
                            parameter._options(memory, *part)))

    def count(self, parameter: Tensor) -> int:
        """Number of updates of this parameter."""
        count = ctypes.c_uint64()
        check(lib.stw_optimizer_get_count(self._use(), parameter._use(), count))
        return count.value

    def set_count(self, parameter: Tensor, count: int) -> None:
        check(lib.stw_optimizer_set_count(self._use(), parameter._use(), count))

    def destroy(self) -> None:
        """End it and its states. BusyError during a step, for which Runtime.drain() waits."""
        check(lib.stw_optimizer_destroy(self._use()))
        self._handle = None
        self._runtime._look_for_ended()
