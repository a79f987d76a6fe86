"""Ends what a writer does before a call that touches the disk, as a kill would."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tierlog import _core

__all__ = ["PowerCutError", "cut_at"]

CALLS = ("rename", "unlink", "open", "pwrite", "utime")


class PowerCutError(BaseException):
    """The process is gone: nothing after it runs."""


@contextmanager
def cut_at(number: int) -> Iterator[list[str]]:
    """Die before the call with this number; yields the calls so far."""
    made: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **more: Any) -> Any:
            if len(made) >= number:
                # Nothing of the dead process touches the disk any more.
                raise PowerCutError(name)
            made.append(name)
            return call(*arguments, **more)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        patch.setattr(_core, "sync_files", counted("sync", _core.sync_files))
        yield made
