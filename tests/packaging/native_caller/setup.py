"""Finds ``tierlog/_hot.pxd`` where the wheel has put it; nothing else is needed."""

from __future__ import annotations

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(ext_modules=cythonize([Extension("native_caller", ["native_caller.pyx"])]))
