"""Sends functions to Spark's workers by name, so that a worker without tierlog gives a clear
error.

Spark sends a function of an installed module to a worker as the name of the module. A worker
without the module then fails with a stack of Spark's own calls. Spark sends the function that
`on_worker` returns as code. When called, this code imports the module of tierlog. If the import
fails, the error names the missing module.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["NOT_INSTALLED", "freeze_once", "on_worker"]

NOT_INSTALLED = "a worker of Spark has no tierlog"
_OPT_OUT = "TIERLOG_SPARK_GC_FREEZE"
_frozen_modules = 0


def on_worker(module: str, name: str) -> Callable[[Any], Any]:
    """Return a function that calls ``name`` of ``module`` in Spark's workers.

    The function raises ModuleNotFoundError in a worker that cannot import tierlog. The message
    begins with ``NOT_INSTALLED`` and names the worker's interpreter.
    """
    not_installed = NOT_INSTALLED

    # Spark sends only the code of this function, so the code must not use a name of this module.
    def call(given: Any) -> Any:
        from importlib import import_module

        try:
            function = getattr(import_module(module), name)
        except ImportError as error:
            import platform
            import sys

            raise ModuleNotFoundError(
                f"{not_installed}: {sys.executable} on {platform.node()} says {error}; "
                "install the wheel there, or ship it: spark_udfs.ship(spark)"
            ) from None
        import_module("spark_udfs.worker").freeze_once()
        return function(given)

    call.__name__ = call.__qualname__ = name
    return call


def freeze_once() -> None:
    """Exclude all loaded modules from garbage collection. A further call does this again only if
    more modules were loaded.

    Spark collects garbage after every task, and a pass over pandas and pyarrow takes longer than a
    short task. If the environment of the workers has ``TIERLOG_SPARK_GC_FREEZE=0``, the call does
    nothing.
    """
    global _frozen_modules
    loaded = len(sys.modules)
    if loaded == _frozen_modules or os.environ.get(_OPT_OUT) == "0":
        return
    _frozen_modules = loaded
    gc.collect()
    gc.freeze()
