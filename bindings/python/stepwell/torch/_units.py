# SPDX-License-Identifier: Apache-2.0
"""Units: subtrees of the model whose parameters are fetched together while they run."""
from __future__ import annotations

import copy
import pickle
import sys
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

import torch

from . import _wrappers
from ._private import not_compiled, pop
from ._records import Absent, Present, Record

if TYPE_CHECKING:
    from ._offload import Offload

HELD = 4  # the most that a backward pass holds at once
# These contain modules or parameters and are never called.
_HOLDERS = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.ParameterList,
            torch.nn.ParameterDict)
_PARAMETER_HOLDERS = (torch.nn.ParameterList, torch.nn.ParameterDict)
_SHARING = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
_call = torch.nn.Module._call_impl
_calling = torch.nn.Module._wrapped_call_impl.__code__  # of what looks up and calls _call_impl
_grad_enabled = torch.is_grad_enabled
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame  # type: ignore[attr-defined]
_compiler: Any = torch.compiler
_transforms = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]


class Unit:
    """Parameters that are pinned from the beginning to the end of a module's call.

    If the whole model fits in the budget, the pin is kept after the call for the backward pass. It
    does not allow accesses then: the parameters are Absent, and an operation that needs the pin
    released may end it.
    """

    def __init__(self, offload: "Offload", name: str, module: torch.nn.Module,
                 records: List[Record]) -> None:
        self.offload = offload
        self.name = name
        self.module = module
        self.records = records
        self.tensors = [record.tensor for record in records]
        self.bytes = sum(record.alias.nbytes for record in records)
        self.depth = 0
        self.calls = 0
        self.views = offload.runtime.prepared(self.tensors)
        self.kept = False       # the views are held although depth is 0
        self.written: List[Any] = []  # what has to be written after the release
        self.task = -1          # the backward pass that holds it
        self.node: Any = None   # the last node of that pass that unpacked one of its parameters
        self.others = 0         # tensors over its memory then that are not ours
        self.awaited = 0        # number of gradients still to arrive in the pass
        self.encoder = False    # an EncoderCall has entered it too, until its call ends
        for record in records:
            if record.unit is None:
                record.unit = self

    def enter(self) -> None:
        if self.depth == 0:
            if self.kept:
                self.kept = False
                self.offload.kept.pop(self, None)
            else:
                if self.offload.accesses.touched:
                    self.offload.accesses.end_touched(self.records)
                self.views.fetch()
            for record in self.records:  # Record.pin(), without the call
                record.pins += 1
                record.parameter.__class__ = Present
        self.depth += 1
        if self.depth == 1 and self.offload.casts.found:
            self._fill()

    def leave(self, keep: bool = False) -> None:
        """The call ends. keep: its views may be held until they have to be released."""
        self.depth -= 1
        if self.depth:
            return
        if self.offload.casts.are_kept():
            self.offload.casts.empty(self.records)
        written, touched = self.written, self.offload.accesses.touched
        for record in self.records:
            if record.alias._version != record.seen:
                written.append((record, record.unpin()))
                continue
            record.pins -= 1  # Record.unpin(), without the call
            if record.pins == 0 or record.pins == 1 and record in touched:
                record.parameter.__class__ = Absent
        if keep and not written:
            self.offload.kept[self] = None
            self.kept = True
            return
        self.views.release()
        if written:
            self._save()

    def _fill(self) -> None:
        try:
            self.offload.casts.fill(self.records)
        except BaseException:
            self.leave()
            raise

    def _save(self) -> None:
        for record, changed in self.written:
            record.save(changed)
        self.written = []
        self.offload.renew_lent()

    def reset(self) -> None:
        """End what an exception between two lines has left. Its records have no pins."""
        self.depth, self.task, self.node, self.encoder = 0, -1, None, False
        self.kept = self.views.held and self in self.offload.kept
        if self.views.held and not self.kept:
            self.written += [(record, record.alias.clone()) for record in self.records
                             if record.alias._version != record.seen]
            self.views.release()
        self._save()


class Call:
    """The entry point for calls of a unit's module, or of the model; the program's hooks run
    inside.

    It replaces the module's _call_impl. A deep copy of the module is as in plain torch. A shallow
    one has this object too, and is called as the unit: the parameters are the same.
    """

    def __init__(self, offload: "Offload", module: torch.nn.Module, unit: Optional[Unit],
                 root: bool) -> None:
        self.offload = offload
        self.module = module
        self.unit = unit
        self.root = root

    def _called(self) -> Any:
        """The one of the two calls up: this one, or of a shallow copy of the module."""
        frame = sys._getframe(2)
        module = frame.f_locals["self"] if frame.f_code is _calling else self.module
        return (self if module is self.module
                else type(self)(self.offload, module, self.unit, self.root))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        called = self._called()
        if called is not self:
            return called(*args, **kwargs)
        offload, unit = self.offload, self.unit
        module = self.module
        if offload.closed or _compiler._is_exporting_flag:
            return _call(module, *args, **kwargs)
        if not offload.inside():
            return offload.alone(self._outermost, *args, **kwargs)
        compiler = _set_eval_frame(None)  # torch.compile's graphs end here, and others begin inside
        begun = transformed = keep = False
        try:
            begun = self.root and offload.begin_call(module)
            if unit is not None:
                if offload.in_backward is not None:
                    for record in unit.records:
                        offload.in_backward.check_values(record)
                unit.calls += 1
                unit.enter()
            try:
                # Within torch.func saved tensors do not reach our hooks: all that may be saved
                # stays pinned.
                transformed = _transforms() is not None
                pushed = not transformed and offload.hooks.push()
                keep = offload.keeps_pins and _grad_enabled()
                if compiler is not None:
                    _set_eval_frame(compiler)
                try:
                    return _call(module, *args, **kwargs)
                finally:
                    if compiler is not None:
                        _set_eval_frame(None)
                    if pushed:
                        pop()
            finally:
                if unit is not None:
                    if transformed:
                        offload.held.append(unit)
                    else:
                        unit.leave(keep)
                    if unit.encoder:
                        unit.encoder = False
                        unit.leave(keep)
        finally:
            if begun:
                offload.end_call()
            if compiler is not None:
                _set_eval_frame(compiler)

    def _outermost(self, *args: Any, **kwargs: Any) -> Any:
        _wrappers.check(self.offload)
        if not self.root and self.module.training and _grad_enabled():
            self.offload.begin_train()  # a model that is called through its parts
        return self(*args, **kwargs)

    def _is_shared(self, references: int, alone: int) -> bool:
        """Whether a shallow copy of the module has it too, or nothing else has."""
        return references > alone or self.module.__dict__.get("_call_impl") is not self

    def __deepcopy__(self, memo: Dict[int, Any]) -> Any:
        plain = PlainCall()
        references = sys.getrefcount(self)
        copied = memo.get(id(self.module))
        if copied is not None and not self._is_shared(references, _references[0]):
            memo[id(plain)] = _Removal(copied)
        return plain

    def __reduce__(self) -> Any:
        references = sys.getrefcount(self)
        if self._is_shared(references, _references[1]):
            return PlainCall, ()
        return getattr, (self.module, "_call_impl")


class PlainCall:
    """Calls the module that it is found in as plain torch does, and is removed from it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        if frame.f_code is not _calling:
            raise RuntimeError("a copy of a shallow copy of a module of an offloaded model is "
                               "called in a compiled function: call it once before")
        module = frame.f_locals["self"]
        module.__dict__.pop("_call_impl", None)
        return module(*args, **kwargs)


class _Removal:
    """Ends with a deep copy's memo, and with it the _call_impl of the copied module."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __del__(self) -> None:
        if type(self._module.__dict__.get("_call_impl")) is PlainCall:
            del self._module.__dict__["_call_impl"]


class _Probe:
    def __deepcopy__(self, memo: Any) -> Any:
        _references.append(sys.getrefcount(self))

    def __reduce__(self) -> Any:
        _references.append(sys.getrefcount(self))
        return PlainCall, ()


_references: List[int] = []  # to one object, in a deep copy and in a pickle of its module


def _measure() -> None:
    module: Any = torch.nn.Module()
    module.__dict__["_call_impl"] = _Probe()
    copy.deepcopy(module)
    pickle.dumps(module)


_measure()
not_compiled(PlainCall.__call__)


not_compiled(Call.__call__)
not_compiled(Call._outermost)


class EncoderCall(Call):
    """Of nn.TransformerEncoder. Before it calls its first layer it looks at that layer's parameters
    and takes a fast path, of other bits, if all of them are plain tensors: so they are pinned until
    that layer has run."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        called = self._called()
        if called is not self:
            return called(*args, **kwargs)
        module: Any = self.module
        known = module.layers[0].__dict__.get("_call_impl")
        unit = known.unit if isinstance(known, Call) else None
        if (module.training or unit is None or self.offload.closed
                or _compiler._is_exporting_flag or not self.offload.inside()):
            return super().__call__(*args, **kwargs)
        compiler = _set_eval_frame(None)
        try:
            unit.enter()
            unit.encoder = True
            try:
                if compiler is not None:
                    _set_eval_frame(compiler)
                return super().__call__(*args, **kwargs)
            finally:
                _set_eval_frame(None)
                if unit.encoder:
                    unit.encoder = False
                    unit.leave()
        finally:
            if compiler is not None:
                _set_eval_frame(compiler)


not_compiled(EncoderCall.__call__)


def install(offload: "Offload", module: torch.nn.Module, unit: Optional[Unit],
            root: bool = False) -> None:
    known = module.__dict__.get("_call_impl")
    if isinstance(known, Call):
        known.unit = unit if unit is not None else known.unit
        known.root = known.root or root
        return
    kind = EncoderCall if isinstance(module, torch.nn.TransformerEncoder) else Call
    module.__dict__["_call_impl"] = kind(offload, module, unit, root)


def uninstall(module: torch.nn.Module) -> None:
    known = module.__dict__.get("_call_impl")
    if isinstance(known, Call):
        known.unit = None
        if not known.root:
            del module.__dict__["_call_impl"]


def looks(module: torch.nn.Module) -> bool:
    """Whether a module takes a fast path, of other bits, if its parameters are plain tensors."""
    return isinstance(module, (torch.nn.TransformerEncoder, *_SHARING))


def shares(module: torch.nn.Module) -> bool:
    """Whether a module uses its children's parameters without calling the children."""
    return (isinstance(module, _SHARING)
            or torch.nn.utils.parametrize.is_parametrized(module))


def own(module: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """A module's own parameters, and those of its parameter lists, which are never called."""
    yield from (each for each in module._parameters.values() if each is not None)
    for child in module._modules.values():
        if isinstance(child, _PARAMETER_HOLDERS):
            yield from child.parameters()


def is_holder(module: torch.nn.Module) -> bool:
    return isinstance(module, _HOLDERS)
