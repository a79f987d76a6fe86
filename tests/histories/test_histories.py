"""A short history of three real brokers (``make histories`` runs long ones), and what the checks
find in wrong rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.histories import checks
from tests.histories.checks import BreachError
from tests.histories.consumers import Row
from tests.histories.put_back import BUGS, put_back
from tests.histories.run import History, run_history
from tierlog.errors import TierlogError

# Its first steps: a paused sidecar, an unclean election, a killed sidecar.
SEED, STEPS = 366, 3
ROWS = [Row(0, 10), Row(1, 11), Row(3, 13)]


@pytest.mark.integration
def test_what_consumers_read_is_what_the_archive_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = run_history(
        tmp_path, SEED, minutes=60, say=print, max_steps=STEPS, afterwards=require_bugs_are_found
    )
    print(figures)
    assert set(figures.steps) == {"pause_sidecar", "elect_uncleanly", "kill_sidecar"}
    assert figures.acked > 500
    assert figures.segments > 5
    assert figures.committed > 0
    assert figures.aborted > 0
    assert figures.live_checks == STEPS
    assert figures.doomed == 1
    # Of five partitions, for both isolation levels; then once more with each defect.
    assert figures.borders >= 10
    assert figures.gaps >= 3
    assert "unclean election of" in capsys.readouterr().out


def require_bugs_are_found(history: History) -> None:
    assert [name for name in BUGS if not is_found(history, name)] == []


def is_found(history: History, name: str) -> bool:
    with put_back(name):
        try:
            history.check_readers()
        except (BreachError, TierlogError):
            return True
    return False


def test_missing_changed_and_strange_rows_are_found() -> None:
    checks.require_same("rows", ROWS, list(ROWS))
    for wrong in (ROWS[:-1], [*ROWS, Row(4, 14)], [Row(0, 10), Row(1, 99), Row(3, 13)], ROWS[::-1]):
        with pytest.raises(BreachError, match="expected 3"):
            checks.require_same("rows", wrong, ROWS)


def test_offsets_twice_or_out_of_order_are_found() -> None:
    checks.require_once("rows", ROWS)
    for wrong in ([*ROWS, Row(3, 13)], [*ROWS, Row(2, 12)]):
        with pytest.raises(BreachError, match="twice"):
            checks.require_once("rows", wrong)


def test_lost_acks_and_aborted_records_are_found() -> None:
    checks.require_acked("rows", ROWS, {0: {10}, 3: {13, 99}})
    for acked in ({0: {11}}, {2: {12}}):
        with pytest.raises(BreachError, match="1 acked records"):
            checks.require_acked("rows", ROWS, acked)
    checks.require_none_of("rows", ROWS, frozenset({12}))
    with pytest.raises(BreachError, match="aborted"):
        checks.require_none_of("rows", ROWS, frozenset({11}))


def test_records_stored_twice_are_counted() -> None:
    assert checks.count_twins(ROWS) == 0
    assert checks.count_twins([*ROWS, Row(4, 10), Row(5, 10)]) == 1
