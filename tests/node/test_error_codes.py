"""Every error of tierlog has a code for clients."""

from __future__ import annotations

from collections.abc import Iterator

import tierlog.errors
from tierlog.errors import ConfigError, TierlogError
from tierlog.node.error_codes import ErrorCode, error_code_of


def subclasses(kind: type[TierlogError]) -> Iterator[type[TierlogError]]:
    for one in kind.__subclasses__():
        yield one
        yield from subclasses(one)


def test_each_error_has_a_code_of_its_own_choice() -> None:
    of_errors = {
        one for one in subclasses(TierlogError) if one.__module__ == tierlog.errors.__name__
    }
    assert len(of_errors) >= 9
    for kind in of_errors:
        code = error_code_of(kind.__new__(kind))
        expected_unknown = issubclass(kind, ConfigError)
        assert (code is ErrorCode.UNKNOWN_SERVER_ERROR) == expected_unknown, kind
        if kind.retriable:
            assert code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.LEADER_NOT_AVAILABLE), kind


def test_an_error_of_the_system_is_tried_again() -> None:
    assert error_code_of(FileNotFoundError(2, "gone")) is ErrorCode.KAFKA_STORAGE_ERROR
    assert error_code_of(ValueError("a defect")) is ErrorCode.UNKNOWN_SERVER_ERROR
