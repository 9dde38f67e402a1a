"""Builds the record kernel where a C compiler exists; without one, its source runs as it is."""

from __future__ import annotations

from Cython.Build import cythonize
from setuptools import Extension, setup

kernel = Extension(
    "millstream.protocol.kernel",
    ["src/millstream/protocol/kernel.py"],
    optional=True,
    extra_compile_args=["-O3", "-fwrapv"],
)

setup(ext_modules=cythonize([kernel], language_level=3, annotate=False))
