"""Builds the record kernels where a C compiler exists; without one, their sources run as they are."""

from __future__ import annotations

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = [
    "millstream.protocol.kernel",
    "millstream.protocol.encode_kernel",
    "millstream.protocol.walk_kernel",
    "millstream.protocol.offset_map_kernel",
    "millstream.protocol.filter_kernel",
    "millstream.protocol.client_kernel",
    "millstream.protocol.consumer_kernel",
]

kernels = [
    Extension(
        name,
        [f"src/{name.replace('.', '/')}.py"],
        optional=True,
        extra_compile_args=["-O3", "-fwrapv"],
    )
    for name in MODULES
]

setup(ext_modules=cythonize(kernels, language_level=3, annotate=False))
