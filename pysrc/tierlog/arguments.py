"""Check the argument types of public functions. An error names the argument.

    @takes(topic=TEXT, end_offset=optional(INTEGER))
    def read(topic: str, end_offset: int | None = None) -> ...

This module does not check values. The error shows only the type of the argument, since its value
may hold credentials.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from functools import wraps
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar, cast

__all__ = [
    "BUFFER",
    "FLAG",
    "FUNCTION",
    "FUNCTION_OR_WORD",
    "INTEGER",
    "MAPPING",
    "PATH",
    "SEGMENT_SOURCE",
    "TEXT",
    "Kind",
    "having",
    "instance_of",
    "native_takes",
    "optional",
    "takes",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Kind(NamedTuple):
    """The required kind of an argument: a description for the error message, and a test."""

    expected: str
    accepts: Callable[[object], bool]


def instance_of(expected: str, *types: type) -> Kind:
    """Return the kind of an object of one of `types`."""
    return Kind(expected, lambda value: isinstance(value, types))


def having(expected: str, *methods: str) -> Kind:
    """Return the kind of an object with these methods. This kind is for protocols of tierlog that
    users implement."""
    return Kind(expected, lambda value: all(hasattr(value, method) for method in methods))


def optional(kind: Kind) -> Kind:
    """Return the kind that also accepts None."""
    return Kind(f"{kind.expected} or None", lambda value: value is None or kind.accepts(value))


def takes(**kinds: Kind) -> Callable[[_Function], _Function]:
    """Return a decorator that checks the arguments of each call. `kinds` maps argument names to
    kinds.

    The decorated function raises TypeError for the first argument that is not of its kind.
    """

    def decorate(function: _Function) -> _Function:
        check = _checker(function, kinds)

        @wraps(function)
        def checked(*args: Any, **named: Any) -> Any:
            check(args, named)
            return function(*args, **named)

        return cast("_Function", checked)

    return decorate


def native_takes(**kinds: Kind) -> Callable[[_Function], _Function]:
    """Return a decorator like that of `takes`, which checks arguments only after the function
    itself has raised TypeError.

    This decorator is for functions that take only a few microseconds, and whose native code checks
    every argument.
    """

    def decorate(function: _Function) -> _Function:
        check = _checker(function, kinds)

        @wraps(function)
        def explained(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except TypeError:
                check(args, named)
                raise

        return cast("_Function", explained)

    return decorate


def _checker(
    function: Callable[..., Any], kinds: Mapping[str, Kind]
) -> Callable[[tuple[object, ...], Mapping[str, object]], None]:
    parameters = inspect.signature(function).parameters.values()
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    further = [one.name for one in parameters if one.kind is one.VAR_POSITIONAL]

    def check(args: tuple[object, ...], named: Mapping[str, object]) -> None:
        # `*more` names all arguments after the others.
        names = chain(positional, *map(repeat, further))
        for name, value in chain(zip(names, args, strict=False), named.items()):
            if name in kinds and not kinds[name].accepts(value):
                found = "None" if value is None else type(value).__name__
                raise TypeError(f"{name}: expected {kinds[name].expected}, found {found}")

    return check


def _is_buffer(value: object) -> bool:
    try:
        memoryview(value)  # type: ignore[arg-type]
    except (TypeError, BufferError):
        return False
    return True


def _is_segment_source(value: object) -> bool:
    return isinstance(value, str | os.PathLike) or hasattr(value, "fileno") or _is_buffer(value)


INTEGER = having("an integer", "__index__")
FLAG = instance_of("True or False", bool)
TEXT = instance_of("a str", str)
PATH = instance_of("a path (str or os.PathLike)", str, os.PathLike)
MAPPING = instance_of("a mapping of str to str", Mapping)
FUNCTION = Kind("a function", callable)
FUNCTION_OR_WORD = Kind(
    'a function, "fail" or "skip"', lambda value: callable(value) or isinstance(value, str)
)
BUFFER = Kind("bytes or another buffer", _is_buffer)
SEGMENT_SOURCE = Kind("a path, an open file or a buffer of a segment's bytes", _is_segment_source)
