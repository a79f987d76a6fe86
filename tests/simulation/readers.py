"""Readers of a simulated store get the committed records, or an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.archive import BreachError
from tests.simulation.sidecars import STORES, KilledError, Process
from tests.simulation.store import URL, SimulatedStore
from tests.simulation.truth import Truth
from tierlog.errors import TierlogError
from tierlog.reader.open import read

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["read_and_check", "stored_now"]

READER = 0


def read_and_check(
    world: World, truth: Truth, *, committed_only: bool, must_succeed: bool = False
) -> None:
    """Read the whole archive of a partition; BreachError for a wrong or a missing record."""
    name = f"{truth.topic}-{truth.number} ({truth.topic_id})"
    before = stored_now(world, truth)
    process = Process(READER, world.at_request)
    world.running.append(process)
    STORES[URL] = SimulatedStore(world.objects, process.reach)
    found: dict[int, bytes] = {}
    error = None
    try:
        for columns in read(
            URL,
            truth.topic_id,
            truth.number,
            isolation_level="read_committed" if committed_only else "read_uncommitted",
        ):
            for record in columns.records():
                if record.offset in found:
                    raise BreachError(f"{name}: offset {record.offset} was read twice")
                found[record.offset] = bytes(record.value or b"")
    except (TierlogError, OSError) as caught:
        error = caught
    except KilledError:
        return
    except BreachError as breach:
        world.breach = world.breach or breach
        return
    finally:
        world.running.pop()
    try:
        if must_succeed and before and error is not None:
            raise BreachError(f"{name} cannot be read: {error}")
        after = before & stored_now(world, truth)
        _check(truth, found, after, is_whole=error is None, committed_only=committed_only)
    except BreachError as breach:
        how = "committed" if committed_only else "all"
        text = f"{name}, {how} records, offsets {sorted(found)}, then {error}: {breach}"
        world.breach = world.breach or BreachError(text)


def stored_now(world: World, truth: Truth) -> int:
    """The offsets that the store holds soundly."""
    held = 0
    for one in world.archive.counted():
        if (one.topic_id, one.number) == (truth.topic_id, truth.number):
            held |= world.archive.offsets(one, truth)
    return held & ~truth.lost


def _check(
    truth: Truth, found: dict[int, bytes], stored: int, *, is_whole: bool, committed_only: bool
) -> None:
    everything = truth.expected((1 << truth.end) - 1, committed_only=committed_only)
    for offset, value in found.items():
        if everything.get(offset) != value:
            raise BreachError(
                f"offset {offset} reads as {value!r}, committed is {everything.get(offset)!r}"
            )
    if list(found) != sorted(found):
        raise BreachError("the offsets are out of order")
    required = truth.expected(stored, committed_only=committed_only)
    first, last = min(found, default=0), max(found, default=-1)
    for offset in required:
        if offset in found or offset < truth.gone_below:
            continue
        is_between = first < offset < last and truth.stored >> offset & 1
        is_stored = is_whole and stored >> offset & 1 and not truth.may_be_deleted
        if is_between or is_stored:
            raise BreachError(f"offset {offset} was passed over")
