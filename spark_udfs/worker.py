"""How our functions get into a worker of Spark: by name, so that one without tierlog can say so.

A function of an installed module goes to a worker as that module's name, and one that lacks the
module answers with a stack of Spark's own calls. What `on_worker` returns goes as code instead. It
looks our module up when it is called, and that is where it says what is missing.
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
    """A function for Spark to call in its workers: ``name`` of ``module`` there.

    Raises ModuleNotFoundError in the worker when tierlog cannot be imported there; the text begins
    with ``NOT_INSTALLED`` and names the worker's interpreter.
    """
    not_installed = NOT_INSTALLED

    # Nothing of this module may be named inside: the code travels alone.
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
    """Takes all that is loaded out of the garbage collector's sight, once: again only when modules
    were loaded since, as pandas is when pyarrow is first given a list.

    Spark collects garbage after every task, and to look through pandas and pyarrow takes longer
    than a short task. ``TIERLOG_SPARK_GC_FREEZE=0`` in the workers' environment keeps it from that.
    """
    global _frozen_modules
    loaded = len(sys.modules)
    if loaded == _frozen_modules or os.environ.get(_OPT_OUT) == "0":
        return
    _frozen_modules = loaded
    gc.collect()
    gc.freeze()
