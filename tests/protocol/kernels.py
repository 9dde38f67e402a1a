"""The record modules over each kind of kernel: compiled, and the same source interpreted.

Every module that stands on the kernel is loaded once more over the interpreted one, so that a test
written for `Records` runs through the same public functions in both cases.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import millstream.protocol
from millstream.protocol import (
    batch,
    columns,
    encode_kernel,
    fetched,
    filter_kernel,
    kernel,
    offset_map_kernel,
    validation,
    walk_kernel,
)

KINDS = ("compiled", "interpreted")
_PACKAGE = "millstream.protocol"
_KERNELS = ("kernel", "encode_kernel", "walk_kernel", "offset_map_kernel", "filter_kernel")
_ABOVE = ("fetched", "columns", "batch", "validation")


class Records(NamedTuple):
    """The modules over one kind of kernel."""

    kernel: Any
    encode: Any
    walk: Any
    offset_map: Any
    filter: Any
    fetched: Any
    columns: Any
    batch: Any
    validation: Any


@cache
def records_over(kind: str, with_cython: bool = False) -> Records:
    """The modules over that kind of kernel; with or without Cython at hand where it is interpreted."""
    if kind == "compiled":
        kernels = (kernel, encode_kernel, walk_kernel, offset_map_kernel, filter_kernel)
        if not all(module.IS_COMPILED for module in kernels):
            raise AssertionError("a compiled kernel is missing: python setup.py build_ext --inplace")
        return Records(*kernels, fetched, columns, batch, validation)
    with _other_modules(hide_cython=not with_cython):
        interpreted = [_interpreted(name) for name in _KERNELS]
        return Records(*interpreted, *(importlib.import_module(f"{_PACKAGE}.{name}") for name in _ABOVE))


def _interpreted(kernel_name: str) -> ModuleType:
    source = Path(millstream.protocol.__file__).with_name(f"{kernel_name}.py")
    name = f"{_PACKAGE}.{kernel_name}"
    loader = importlib.machinery.SourceFileLoader(name, str(source))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    assert not module.IS_COMPILED
    return module


@contextmanager
def _other_modules(hide_cython: bool) -> Iterator[None]:
    """Let the modules above the kernel be imported anew, and put the usual ones back afterwards."""
    names = [f"{_PACKAGE}.{name}" for name in (*_KERNELS, *_ABOVE)]
    kept: dict[str, ModuleType | None] = {name: sys.modules.pop(name, None) for name in names}
    kept["cython"] = sys.modules.pop("cython", None)
    if hide_cython:
        sys.modules["cython"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
        for name in (*_KERNELS, *_ABOVE):
            setattr(millstream.protocol, name, sys.modules[f"{_PACKAGE}.{name}"])
