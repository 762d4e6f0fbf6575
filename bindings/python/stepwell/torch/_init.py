# SPDX-License-Identifier: Apache-2.0
"""init(): a model whose parameters are moved to tiers while its constructor runs.

torch's registration hooks report each parameter that a module gets. The parameters of the module
that registered one last are in plain memory; earlier ones are in tensors, and each operation on one
of them fetches it (Absent in _records.py).
"""
from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any, List, Mapping, Optional, Set, Tuple

import torch
from torch.nn.modules.module import (
    register_module_module_registration_hook, register_module_parameter_registration_hook,
)

from .._options import Nvme
from ._budgets import budgets
from ._making import (
    check_alone, check_options, check_place, check_updates, checked, move_buffers, unwrapped,
    warn_of_held,
)
from ._offload import Offload, opened
from ._optimizer import check_parameters
from ._place import HOST, DeviceLike, Place, device_of
from ._records import DTYPES, Offloaded, users_of
from ._sizes import Places, Size, places_of

_inside = threading.local()
_Parameter = torch.nn.Parameter
_plain_new = _Parameter.__new__
_trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


def _new(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """Parameter(p) of a parameter in tiers gets its own memory, since it usually replaces p."""
    if not isinstance(data, Offloaded):
        return _plain_new(cls, data, requires_grad)
    record = data._stepwell
    made = _plain_new(cls, record.offload.accesses.copy_of(record), requires_grad)
    if record.offload.making is not None:
        record.offload.making.shares(data, made)
    return made


class Tiers:
    """Tiers in which a model was created, for its offload(). From init().

    Threads: as for the model.
    """

    def __init__(self, made: Offload, durable: bool) -> None:
        self.runtime = made.runtime
        self._device = made.place.device
        self._default: Any = None  # the block in which it is PyTorch's default
        self._made = made
        made.making = self
        self._durable = durable
        self._waiting: List[Tuple[str, "weakref.ref[torch.nn.Parameter]"]] = []
        self._shared: List[Tuple[Any, Any]] = []  # made by Parameter() of a parameter
        self._module: Any = None
        self._hooks: List[Any] = []
        self._count = 0
        self._freed = 0  # bytes of plain memory since memory was last returned to the system

    # -- the with statement -----------------------------------------------------------------------

    def __enter__(self) -> "Tiers":
        if getattr(_inside, "tiers", None) is not None:
            self.runtime.close()
            raise ValueError("init() inside init(): one model has one")
        _inside.tiers = self
        if not self._made.place.is_host:
            self._default = torch.device(self._device)
            self._default.__enter__()
        _Parameter.__new__ = _new  # type: ignore[method-assign]
        self._hooks = [register_module_parameter_registration_hook(self._parameter),
                       register_module_module_registration_hook(self._child)]
        return self

    def __exit__(self, kind: Any, *of: Any) -> None:
        if self._default is not None:
            self._default.__exit__(kind, *of)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        _inside.tiers = None
        _Parameter.__new__ = _plain_new  # type: ignore[method-assign]
        if kind is not None:
            self.runtime.close(deferred=True)
        else:
            self._move()

    def _parameter(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        if getattr(_inside, "tiers", None) is not self:
            return
        if self._module is None or self._module() is not module:
            self._move()
            self._module = weakref.ref(module)
        self._take(f"{type(module).__name__}.{name}", parameter)

    def _child(self, module: torch.nn.Module, name: str, child: Any) -> None:
        """A module is registered: its parameters are complete, and so are unregistered copies."""
        if child is not None and getattr(_inside, "tiers", None) is self:
            for below in child.modules():
                for own, parameter in below._parameters.items():
                    self._take(f"{type(below).__name__}.{own}", parameter)
            self._move()

    def copied(self, name: str, parameter: torch.nn.Parameter) -> None:
        """A copy of a parameter in tiers was made, which no module has registered."""
        if getattr(_inside, "tiers", None) is self:
            self._take(name, parameter)

    def shares(self, one: torch.nn.Parameter, other: torch.nn.Parameter) -> None:
        self._shared.append((weakref.ref(one), weakref.ref(other)))

    # -- moving -----------------------------------------------------------------------------------

    def _take(self, name: str, parameter: Any) -> None:
        """Move it together with later ones, if it can be moved."""
        if self._others(parameter) > self._made.unit_bytes:
            self._move()
        if (type(parameter) is torch.nn.Parameter and parameter.layout == torch.strided
                and parameter.device == self._device and parameter.dtype in DTYPES
                and all(known() is not parameter for _, known in self._waiting)):
            self._waiting.append((name, weakref.ref(parameter)))

    def fresh(self, name: str) -> str:
        """An unused tensor name."""
        self._count += 1
        return f"{name.rsplit(' #', 1)[0]} #{self._count}"

    def _others(self, parameter: Any) -> int:
        """Bytes of it and of waiting ones, except the largest: a weight waits for its bias, since
        the module initialises both after registering them."""
        known = [each for each in (waiting() for _, waiting in self._waiting) if each is not None]
        sizes = [each.numel() * each.element_size() for each in [*known, parameter]
                 if isinstance(each, torch.Tensor)]
        return sum(sizes) - max(sizes, default=0)

    def _move(self) -> None:
        """Move waiting parameters, except those whose memory a tensor of the program shares."""
        due, kept = [], []
        for name, known in self._waiting:
            parameter = known()
            if parameter is None or type(parameter) is not torch.nn.Parameter:
                continue
            if users_of(parameter) > 1:
                kept.append((name, known))
                continue
            due.append((self.fresh(name), parameter))
        self._waiting = kept
        made = self._made.move(due, False)
        self._give_back(sum(record.tensor.nbytes for record in made))

    def _give_back(self, nbytes: int) -> None:
        """Return freed memory to the system. glibc's heap keeps freed memory below a small live
        piece, in the end as much as the model.
        """
        self._freed += nbytes
        if _trim is not None and self._freed > self._made.unit_bytes:
            self._freed = 0
            _trim(ctypes.c_size_t(0))

    # -- going on ---------------------------------------------------------------------------------

    def offload(self, model: torch.nn.Module,
                optimizer: Optional[torch.optim.Optimizer] = None, *,
                keep_gradients: bool = False, update_in_backward: bool = False,
                find_unused_parameters: bool = False, tile_bytes: Optional[Size] = None,
                strict: bool = True
                ) -> Tuple[torch.nn.Module, Optional[torch.optim.Optimizer]]:
        """stepwell.torch.offload() in these tiers; returns both arguments.

        Parameters of the model in plain memory are moved, too, and the tensors of unreferenced
        parameters are destroyed. Blocks while bytes are moved: with a store_name all of them are
        moved once, to tensors with the names of the model.
        """
        made = self._made
        given, optimizer = optimizer, unwrapped(optimizer)
        check_updates(optimizer, keep_gradients, update_in_backward, find_unused_parameters)
        if self._hooks:
            raise ValueError("the model is still being made: call offload() after the with")
        if made.model is not None:
            raise ValueError("these tiers have a model already: make one init() for each")
        parameters = checked(model, made, sorted({"cpu", str(self._device)}))
        check_alone(model, parameters)
        warn_of_held(parameters, optimizer)
        names = {id(parameter): name for name, parameter in parameters}
        for one, other in self._shared:
            if id(one()) in names and id(other()) in names:
                raise ValueError(
                    f"parameter '{names[id(other())]}' was made as Parameter() of "
                    f"'{names[id(one())]}': they would share memory and are not one Parameter; tie "
                    "them by assigning one object to both modules")
        if optimizer is not None:
            check_parameters(optimizer, set(names))
        made.keep_gradients = keep_gradients
        made.mark()
        self._waiting = []
        self._sweep(set(names))
        try:
            made.begin(model, optimizer, parameters, self._durable, update_in_backward,
                       find_unused_parameters, tile_bytes, strict)
            if not made.place.is_host:
                move_buffers(model, self._device)
        except BaseException:
            made.let_go(model)
            made.model = None
            raise
        made.making = None
        return model, given

    def _sweep(self, used: Set[int]) -> None:
        """Destroy the tensors of parameters that only their records refer to."""
        made = self._made
        others = []
        for record in list(made.records):
            if id(record.parameter) not in used:
                made.forget(record)
                others.append((record.tensor, weakref.ref(record.parameter)))
                del record
        gc.collect()
        for tensor, known in others:
            parameter: Any = known()
            if parameter is None:
                tensor.destroy()
            else:
                made.remember(parameter._stepwell)

    def close(self) -> None:
        """Give all parameters plain memory again, and close the tiers."""
        self._made.close()


def init(*, device: Optional[DeviceLike] = None, device_bytes: Optional[Size] = None,
         host_bytes: Optional[Size] = None, nvme: Places = None,
         nvme_bytes: Optional[Size] = None, store_name: Optional[str] = None,
         **options: Any) -> Tiers:
    """Create a model larger than memory: inside the `with`, its parameters are moved to tiers.

        with stepwell.torch.init(device_bytes="2GiB", nvme="/fast", nvme_bytes="200GiB") as tiers:
            model = Model()
        optimizer = torch.optim.AdamW(model.parameters())
        tiers.offload(model, optimizer)

    The constructor runs unchanged and draws the same values as without the `with`. Plain memory
    holds the parameters of the module that registered one last, and those whose memory is still
    referenced elsewhere. After the `with` each access fetches its parameter; after tiers.offload()
    the model runs in units. A replaced parameter uses room until then.

    device="cuda": the block runs under torch.device("cuda"), and each module's parameters are made
    there, with the values of its generator, and moved to the tiers. It needs host_bytes.

    nvme_bytes is needed with nvme (except for Nvme objects), since the size of the model is not
    known yet: room for parameters and gradients, and 4 bytes per element for each state of the
    optimizer; with a store_name see docs/generations.md, and add the parameters once more. Other
    arguments are those of offload(). Threads: models that other threads create meanwhile are plain.
    """
    check_options("init", options)
    place = HOST if device is None else Place(device_of(device))
    check_place(place, host_bytes, options)
    if host_bytes is None and not place.is_host:
        raise ValueError("init(device=...) needs host_bytes, best enough for all parameters, "
                         "gradients and states: the model's size is not known before it is made")
    if nvme_bytes is None and not all(isinstance(place, (Nvme, Mapping))
                                      for place in places_of(nvme)):
        raise ValueError("init(nvme=...) needs nvme_bytes, the room for parameters, gradients and "
                         "optimizer states: the model's size is not known before it is made")
    given = budgets(place, device_bytes, host_bytes, lambda: 0, nvme is not None, options)
    return Tiers(opened(*given, nvme, nvme_bytes, store_name, False, options, place, False),
                 store_name is not None)
