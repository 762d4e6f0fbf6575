# SPDX-License-Identifier: Apache-2.0
"""The entries of state_dict(): copies in plain memory that follow the parameter.

In plain torch an entry is the parameter, so programs load into entries (torch.distributed.
checkpoint), average into them, or find the present values in old ones. Here each operation on an
entry, or on a view of it, first renews a copy that is older than the parameter's last change, and
one that writes to it writes the parameter as well.
"""
from __future__ import annotations

import weakref
from typing import Any, Dict

import torch
from torch.utils import _pytree

from ._lazy import PLAINLY, absent
from ._records import Record

_task = torch._C._current_graph_task_id
_Off = torch._C.DisableTorchFunctionSubclass
_plain: Any = torch.Tensor._make_subclass  # type: ignore[attr-defined]


class Snapshot:
    """The copy of a parameter that the entries of one call of state_dict() share."""

    def __init__(self, record: Record, whole: torch.Tensor) -> None:
        self.record = record
        self.whole = whole
        self._seen = self._changes()

    def _changes(self) -> Any:
        """What shows a change; None: nothing would, as the program may have the memory."""
        record = self.record
        if record.offload.closed or record.escaped:
            return None
        return record.changes, record.alias._version

    def renew(self, used: bool = True) -> None:
        """Take the parameter's values, if they have changed. used: by an operation, which may be
        one of a backward pass."""
        now = self._changes()
        if now is not None and now == self._seen:
            return
        record = self.record
        if record.offload.closed:
            values = record.parameter.detach()
        elif record.offload.ranks is None:
            values = record.offload.accesses.copy_of(record)
        else:
            raise RuntimeError(
                f"this entry of state_dict() is older than the last change of {record.label()}, "
                "whose values all processes would have to collect: call state_dict() again in all "
                "of them, or take a clone() of the entry before the change")
        if used and _task() >= 0 and not torch.equal(values, self.whole):
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified: "
                f"{record.label()}, of which it has an entry of state_dict(), was updated or "
                "written after the forward pass")
        self.whole.copy_(values)
        self._seen = now

    def lend(self, array: Any) -> None:
        """The program has an array over the copy, which changes with the parameter."""
        lent = self.record.offload.lent
        key = id(array)  # no other array's as long as it is there
        lent[key] = self, weakref.ref(array, lambda _: lent.pop(key, None))

    def written(self) -> None:
        record = self.record
        if record.offload.closed:
            record.parameter.detach().copy_(self.whole)
        else:
            record.offload.accesses.fill(record, self.whole)
        self._seen = self._changes()


class Entry(torch.Tensor):
    """An entry, or a view of it. It is saved, copied and pickled as a plain tensor."""

    _source: Snapshot

    @staticmethod
    def __new__(cls, data: torch.Tensor, source: Snapshot) -> "Entry":
        made: Entry = _plain(cls, data)
        made._source = source
        return made

    def __init__(self, data: torch.Tensor, source: Snapshot) -> None:
        pass

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PLAINLY and kwargs.get("out") is None:
            args = [each.plain() if isinstance(each, Entry) else each for each in args]
            kwargs = {name: each.plain() if isinstance(each, Entry) else each
                      for name, each in kwargs.items()}
        if absent[0] in types:
            return absent[0].__torch_function__(func, types, args, kwargs)
        with _Off():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            raise RuntimeError(
                f"{func}: the entries of an offloaded model's state_dict() are copies, and other "
                "processes are sent, or send, their clone(): load_state_dict() takes what was "
                "received")
        shown: Dict[int, Any] = {}  # of each entry, by its own id
        own: Dict[int, Entry] = {}  # by that of its plain tensor

        def show(value: Any) -> Any:
            if not isinstance(value, Entry):
                return value
            if id(value) not in shown:
                shown[id(value)] = value.plain()  # which renews it
                own[id(shown[id(value)])] = value
            return shown[id(value)]

        def wrap(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or id(value) in own:
                return own.get(id(value), value)
            if value.layout == torch.strided and value.device.type != "meta":
                for plain in shown.values():
                    if value.untyped_storage()._cdata == plain.untyped_storage()._cdata:
                        return Entry(value, own[id(plain)]._source)
            return value

        names = {argument.name for argument in func._schema.arguments
                 if argument.alias_info is not None and argument.alias_info.is_write}
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args)}
        given.update(kwargs or {})
        written = {value._source: None
                   for value in _pytree.tree_leaves([given[name] for name in names & set(given)])
                   if isinstance(value, Entry)}
        args, kwargs = _pytree.tree_map(show, (args, kwargs or {}))
        result = func(*args, **kwargs)
        for source in written:
            source.written()
        return _pytree.tree_map(wrap, result)

    def plain(self) -> torch.Tensor:
        """A plain tensor over its memory, which has the parameter's values."""
        self._source.renew()
        with torch._C._DisableTorchDispatch():  # type: ignore[attr-defined]
            return _plain(torch.Tensor, self)  # type: ignore[no-any-return]

    def _alone(self) -> torch.Tensor:
        """What a copy of it is: a Parameter if one was made of it."""
        if not getattr(self, "_is_param", False):
            return self.plain()
        return torch.nn.Parameter(self.plain(), self.requires_grad)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._alone().__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Dict[int, Any]) -> torch.Tensor:
        alone = self._alone()
        made = alone.__deepcopy__(memo)  # type: ignore[no-untyped-call]
        memo[id(alone)], memo[-id(alone)] = made, alone  # it stays, so that its id is not reused
        return made  # type: ignore[no-any-return]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(self.plain())

    def __format__(self, spec: Any) -> str:
        return self.plain().__format__(spec)

    def tolist(self) -> Any:
        return self.plain().tolist()

    def data_ptr(self) -> int:
        return self.plain().data_ptr()

    def untyped_storage(self) -> Any:
        return self.plain().untyped_storage()

    def numpy(self, *, force: bool = False) -> Any:
        """A read-only array, since no write to it would reach the parameter."""
        array = self.plain().numpy(force=force)
        array.flags.writeable = False
        if self._source.whole.is_cpu:
            self._source.lend(array)
        return array

    def __array__(self, dtype: Any = None) -> Any:  # type: ignore[override]
        return self.numpy() if dtype is None else self.numpy().astype(dtype, copy=False)

    def __dlpack__(self, *_: Any, **__: Any) -> Any:
        raise BufferError("a write through DLPack to an entry of an offloaded model's state_dict() "
                          "would not reach the parameter: export a clone() of it")
