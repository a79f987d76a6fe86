"""Durations as people write them."""

from __future__ import annotations

import pytest

from tierlog.config.durations import parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("0s", 0),
        ("604800000ms", 604_800_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("1d12h", 129_600_000),
        ("90m", 5_400_000),
        ("1.5h", 5_400_000),
        ("250ms", 250),
        ("2hr", 7_200_000),
    ],
)
def test_forms(text: str, expected_ms: int) -> None:
    assert parse_duration(text) == expected_ms


def test_a_bare_number_is_in_the_unit_asked_for() -> None:
    assert parse_duration("0.5", "s") == 500
    assert parse_duration("5m", "s") == 300_000


def test_a_bare_number_without_a_unit_to_count_in_is_refused_with_both_readings() -> None:
    with pytest.raises(ValueError, match="write 7d for 7 days, or 7ms for 7 milliseconds"):
        parse_duration("7")


@pytest.mark.parametrize("text", ["", "d", "7y", "-7d", "7 d", "1e3", "7D", "٣d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a duration as in 90m"):
        parse_duration(text)
