# SPDX-License-Identifier: Apache-2.0
"""The shared library: its path, and its functions with their prototypes."""
from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, List

from . import _abi

NAME = f"libstepwell.so.{_abi.ABI_MAJOR}"


def candidates() -> List[str]:
    """The candidates, in order: from the environment, the copy in a wheel, from the loader."""
    named = os.environ.get("STEPWELL_LIBRARY")
    if named:
        if not os.path.isabs(named):
            raise ImportError(f"STEPWELL_LIBRARY is '{named}'; it must be an absolute path")
        return [named]
    here = Path(__file__).resolve().parent
    beside = (here / "lib" / NAME, here.parent / ".stepwell.mesonpy.libs" / NAME)
    return [str(path) for path in beside if path.exists()] + [NAME]


def load() -> ctypes.CDLL:
    reasons = []
    for path in candidates():
        try:
            return with_prototypes(ctypes.CDLL(path), path)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError(
        "the Stepwell library cannot be loaded; install it, or say where it is in STEPWELL_LIBRARY "
        f"({'; '.join(reasons)})"
    )


def with_prototypes(library: ctypes.CDLL, path: str) -> ctypes.CDLL:
    try:
        library.stw_abi_version.restype = ctypes.c_uint32
        major = library.stw_abi_version()
    except AttributeError:
        raise ImportError(f"{path} is not a Stepwell library") from None
    if major != _abi.ABI_MAJOR:
        raise ImportError(
            f"{path} has the ABI major {major}, and this package is made for {_abi.ABI_MAJOR}"
        )
    for name, (result, arguments) in _abi.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"{path} is older than this package: it has no {name}") from None
        function.restype = result
        function.argtypes = arguments
        setattr(library, name, _checking(name, function, arguments))
    return library


def _checking(name: str, function: Any, arguments: Any) -> Any:
    """Check the range of integers, which ctypes would reduce modulo 2^n."""
    numbers = [(i, kind) for i, kind in enumerate(arguments) if kind in _abi.LIMITS]
    if not numbers:
        return function

    def call(*given: Any) -> Any:
        values = list(given)
        for i, kind in numbers:
            if i < len(values) and not isinstance(values[i], kind):
                values[i] = _abi.checked(f"argument {i + 1} of {name}", values[i], kind)
        return function(*values)

    call.__name__ = name
    return call


lib = load()


def unchecked(name: str) -> Any:
    """The function without conversion of arguments, for the most frequent calls."""
    function = lib[name]  # a new object, unlike the attribute
    function.restype = ctypes.c_int32
    return function
