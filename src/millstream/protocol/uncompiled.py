"""The part of the `cython` module that kernel.py uses, for machines without Cython.

Decorators give back what they decorate, types stand for nothing, and `compiled` is false, so the
kernel runs as the plain Python that it is.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")

compiled = False


class _Type:
    """Any C type: `uchar`, `const[uchar]`, `uchar[::1]`; a cast to it changes nothing."""

    def __getitem__(self, _: object) -> _Type:
        return self


void = const = uchar = uint = longlong = ulonglong = double = Py_ssize_t = bint = _Type()
p_uchar = p_const_uchar = p_uint = p_longlong = p_ulonglong = NULL = _Type()
int = _Type()  # noqa: A001 (C's int)


class _WithoutLock:
    """`nogil`, which is both a decorator and a context manager."""

    def __call__(self, function: T) -> T:
        return function

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


nogil = _WithoutLock()


def cfunc(function: T) -> T:
    return function


inline = cfunc


def exceptval(*_: object, **__: object) -> Any:
    return cfunc


def declare(_: object, value: T) -> T:
    return value


def cast(_: object, value: T) -> T:
    return value
