"""Triggers of a stream, planned and read as Spark does it, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from spark_udfs import stream
from spark_udfs.stream_offsets import advanced, as_json, from_json, limited
from tests.kafka_tools.golden import golden_segments, truth_records
from tests.spark.growing import GrowingLogDir, GrowingStore, fill_store
from tests.spark.query import Query
from tierlog.clock import ManualClock
from tierlog.errors import ConfigError, GapError, OutOfRangeError
from tierlog.log.checkpoint import TopicPartition
from tierlog.log.segment import scan_segment
from tierlog.tables.plan import Partition

EPOCHS = [row["offset"] for row in truth_records("clean", "epochs", 0)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> GrowingStore:
    return GrowingStore(whole, tmp_path / "store")


def base_offset(store: GrowingStore, number: int) -> int:
    return int(store.segments("epochs")[number].name[:20])


# -- a store


def test_finished_segments_as_they_come(store: GrowingStore) -> None:
    store.add("epochs", 0, 1)
    query = Query(store.url)
    assert query.start() == {"epochs": {"0": 0}}
    rolled = [one for one in golden_segments("epochs", "clean") if one.rolled]
    for number, segment in enumerate(rolled):
        query.trigger()
        assert query.seen() == [one for one in EPOCHS if one < segment.next_base_offset]
        assert query.offsets == {"epochs": {"0": segment.next_base_offset}}
        assert query.trigger() == []
        store.add("epochs", number + 1, number + 2)


def test_half_a_segment_is_not_there_yet(store: GrowingStore) -> None:
    store.add("epochs", 0, 2)
    path = Path(store.url.removeprefix("file://")) / store.segments("epochs")[1]
    indexes = path.with_suffix(".indexes")
    kept = indexes.read_bytes()
    indexes.unlink()
    query = Query(store.url)
    query.trigger()
    assert query.seen()[-1] < base_offset(store, 1)
    indexes.write_bytes(kept)
    query.trigger()
    assert query.seen() == [one for one in EPOCHS if one < base_offset(store, 2)]


def test_a_stream_starts_at_the_end_unless_told_otherwise(store: GrowingStore) -> None:
    store.add("epochs", 0, 1)
    query = Query(store.url, startingOffsets="latest")
    assert query.start() == {"epochs": {"0": base_offset(store, 1)}}
    store.add("epochs", 1, 2)
    query.trigger()
    assert query.seen()[0] >= base_offset(store, 1)


def test_restarts_and_repeats_read_each_record_once(store: GrowingStore) -> None:
    """A process that dies after planning is followed by one that plans the same again."""
    store.add("epochs", 0, 2)
    query = Query(store.url, maxOffsetsPerTrigger="37")
    while True:
        before = query.start()
        rows = query.trigger()
        if not rows:
            break
        query.restart()
        assert query.offsets is not None
        assert query.read(before, query.offsets) == rows
        query.restart()
    assert query.seen() == [one for one in EPOCHS if one < base_offset(store, 2)]
    assert len(query.batches) == -(-base_offset(store, 2) // 37)


def test_limits(store: GrowingStore) -> None:
    store.add("epochs", 0, 2)
    query = Query(store.url, maxOffsetsPerTrigger="10")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(10)
    assert len(query.trigger()) == 10
    query.trigger(every=True)
    assert len(query.seen()) == len([one for one in EPOCHS if one < base_offset(store, 2)])
    assert Query(store.url).reader.getDefaultReadLimit() == ReadAllAvailable()


def test_too_little_is_waited_for_and_not_for_ever(store: GrowingStore) -> None:
    """Offsets are waited for, by the monotonic clock, in all triggers but the first."""
    clock = ManualClock()
    ends = [one.next_base_offset for one in golden_segments("epochs", "clean") if one.rolled]
    least = ends[2] - ends[1] + 1
    query = Query(store.url, minOffsetsPerTrigger=str(least), maxTriggerDelay="2min")
    query.clock = clock
    query.restart()
    assert query.reader.getDefaultReadLimit() == ReadMinRows(least)
    store.add("epochs", 0, 1)
    query.trigger()
    assert query.offsets == {"epochs": {"0": ends[0]}}
    clock.advance(120_000)
    store.add("epochs", 1, 2)
    query.trigger()
    assert query.offsets == {"epochs": {"0": ends[1]}}
    store.add("epochs", 2, 3)
    clock.advance(119_999)
    clock.jump_wall(3_600_000)
    assert query.trigger() == []
    assert query.offsets == {"epochs": {"0": ends[1]}}
    clock.advance(1)
    query.trigger()
    assert query.offsets == {"epochs": {"0": ends[2]}}


@pytest.mark.parametrize("missing", [0, 1])
def test_as_much_as_was_asked_for_goes_at_once(missing: int, store: GrowingStore) -> None:
    ends = [base_offset(store, number) for number in range(1, 3)]
    least = ends[1] - ends[0] + missing
    query = Query(store.url, minOffsetsPerTrigger=str(least))
    store.add("epochs", 0, 1)
    query.trigger()
    store.add("epochs", 1, 2)
    query.trigger()
    assert query.offsets == {"epochs": {"0": ends[0 if missing else 1]}}
    # Whoever wants all that is there does not wait.
    query.trigger(every=True)
    assert query.offsets == {"epochs": {"0": ends[1]}}


def test_a_query_that_ends_waits_for_nothing(store: GrowingStore) -> None:
    store.add("epochs", 0, 2)
    limits = {"minOffsetsPerTrigger": "30", "maxOffsetsPerTrigger": "40"}
    query = Query(store.url, **limits)
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(40)
    query.reader.prepareForTriggerAvailableNow()
    while query.trigger():
        pass
    assert query.offsets == {"epochs": {"0": base_offset(store, 2)}}


def test_a_pyspark_that_asks_for_no_limits(
    store: GrowingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that was asked for is left out in silence."""
    monkeypatch.setattr(stream, "has_limits", False)
    for option in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"):
        with pytest.raises(ConfigError, match=r"expected PySpark 4\.2 or newer"):
            Query(store.url, **{option: "10"})
    Query(store.url)


def test_available_now_ends_where_it_began_to_look(store: GrowingStore) -> None:
    store.add("epochs", 0, 1)
    query = Query(store.url, maxOffsetsPerTrigger="50", subscribePattern="epochs|headers")
    query.start()
    query.reader.prepareForTriggerAvailableNow()
    store.add("epochs", 1, 2)
    store.add("headers", 0, 1)
    while query.trigger():
        pass
    assert query.seen() == [one for one in EPOCHS if one < base_offset(store, 1)]
    assert query.offsets == {"epochs": {"0": base_offset(store, 1)}}
    # The run after it takes up what came meanwhile.
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    while query.trigger():
        pass
    topics = {row["topic"] for batch in query.batches for row in batch}
    assert topics == {"epochs", "headers"}


def test_new_topics_and_partitions_from_their_first_offset(store: GrowingStore) -> None:
    store.add("epochs", 0, 1)
    query = Query(store.url, subscribePattern="epochs|orders.*", startingOffsets="latest")
    assert query.trigger() == []
    store.add("orders.eu-west_1", 0, 1, partition=0)
    (first, *_) = query.trigger()
    assert (first["topic"], first["partition"], first["offset"]) == ("orders.eu-west_1", 0, 0)
    store.add("orders.eu-west_1", 0, 1, partition=1)
    assert {row["partition"] for row in query.trigger()} == {1}
    assert query.trigger() == []
    found = {(row["topic"], row["partition"]) for batch in query.batches for row in batch}
    assert found == {("orders.eu-west_1", 0), ("orders.eu-west_1", 1)}


def test_committed_records_only(store: GrowingStore) -> None:
    """A trigger ends where a transaction is open; nothing of an aborted one is read."""
    truth = truth_records("clean", "transactions", 0)
    query = Query(store.url, subscribe="transactions", **{"isolation.level": "read_committed"})
    for number in range(len(store.segments("transactions"))):
        store.add("transactions", number, number + 1)
        query.trigger()
    wanted = [row["offset"] for row in truth if row["read_committed"]]
    assert query.offsets is not None
    end = query.offsets["transactions"]["0"]
    assert query.seen() == [one for one in wanted if one < end]
    assert len(query.seen()) < len([row for row in truth if row["offset"] < end])


# -- what is not there any more


def test_what_retention_removed_is_an_error_that_says_so(store: GrowingStore) -> None:
    store.add("epochs", 0, 1)
    query = Query(store.url)
    query.trigger()
    store.add("epochs", 1, 3)
    store.expire("epochs", 0, 2)
    with pytest.raises(
        OutOfRangeError, match=r"epochs-0: expected offsets .* failOnDataLoss=false"
    ):
        query.trigger()
    lenient = Query(store.url, failOnDataLoss="false")
    lenient.offsets = query.offsets
    rows = lenient.trigger()
    assert rows[0]["offset"] == base_offset(store, 2)


def test_a_trigger_over_missing_offsets_is_an_error(store: GrowingStore) -> None:
    store.add("epochs", 0, 1)
    query = Query(store.url)
    query.trigger()
    store.add("epochs", 2, 3)
    start, end = (base_offset(store, number) for number in (1, 2))
    with pytest.raises(GapError, match=f"offsets {start} to {end - 1} are in no segment"):
        query.trigger()
    lenient = Query(store.url, onGap="skip")
    lenient.offsets = query.offsets
    assert lenient.trigger()[0]["offset"] == end


def test_a_trigger_that_is_repeated_after_its_records_are_gone(store: GrowingStore) -> None:
    """Spark asks for the tasks of a logged trigger without asking how far to go."""
    store.add("epochs", 0, 2)
    query = Query(store.url)
    start = query.start()
    end = query.reader.latestOffset(start, ReadAllAvailable())
    store.expire("epochs", 0, 1)
    query.restart()
    with pytest.raises(OutOfRangeError, match="failOnDataLoss"):
        query.read(start, end)


def test_a_trigger_that_is_repeated_after_a_partition_is_gone(store: GrowingStore) -> None:
    for number in (0, 1):
        store.add("orders.eu-west_1", 0, 1, partition=number)
    query = Query(store.url, subscribe="orders.eu-west_1")
    start = query.start()
    end = query.reader.latestOffset(start, ReadAllAvailable())
    whole = query.read(start, end)
    store.expire("orders.eu-west_1", 0, 1, partition=1)
    query.restart()
    for begin in (start, {}):
        with pytest.raises(OutOfRangeError, match=r"orders.eu-west_1-1: .* no segment any more"):
            query.read(begin, end)
    assert query.read({"orders.eu-west_1": {**end["orders.eu-west_1"], "0": 0}}, end)
    lenient = Query(store.url, subscribe="orders.eu-west_1", failOnDataLoss="false")
    assert lenient.read(start, end) == [row for row in whole if row["partition"] == 0]


def test_a_log_that_ends_before_the_stream_has_come_to(store: GrowingStore) -> None:
    store.add("epochs", 0, 2)
    query = Query(store.url)
    query.trigger()
    store.expire("epochs", 1, 2)
    with pytest.raises(
        OutOfRangeError, match="the log was truncated, or the topic was created again"
    ):
        query.trigger()
    lenient = Query(store.url, failOnDataLoss="false")
    lenient.offsets = query.offsets
    assert lenient.trigger() == []
    store.add("epochs", 1, 3)
    assert lenient.trigger()[0]["offset"] == base_offset(store, 2)


def test_a_partition_without_segments_waits(store: GrowingStore) -> None:
    """All of it has expired, and was read; where it goes on, it is read on."""
    for number in (0, 1):
        store.add("orders.eu-west_1", 0, 1, partition=number)
    query = Query(store.url, subscribe="orders.eu-west_1")
    query.trigger()
    known = query.offsets
    store.expire("orders.eu-west_1", 0, 1, partition=1)
    assert query.trigger() == []
    assert query.offsets == known
    store.add("orders.eu-west_1", 0, 2, partition=1)
    rows = query.trigger()
    assert known is not None
    assert all(row["partition"] == 1 for row in rows)
    assert all(row["offset"] >= known["orders.eu-west_1"]["1"] for row in rows)


@pytest.mark.parametrize("loss", ["true", "false"])
@pytest.mark.parametrize("now", [True, False])
def test_a_topic_without_segments_waits(store: GrowingStore, loss: str, now: bool) -> None:
    """All of a topic that is asked for by name has expired."""
    store.add("epochs", 0, 2)
    query = Query(store.url, failOnDataLoss=loss)
    query.trigger()
    known, seen = query.offsets, query.seen()
    store.expire("epochs", 0, 2)
    query.restart()
    if now:
        query.reader.prepareForTriggerAvailableNow()
    assert query.trigger() == []
    assert query.offsets == known
    if not now:
        store.add("epochs", 2, 3)
        assert query.trigger()[0]["offset"] == base_offset(store, 2)
        assert query.seen()[: len(seen)] == seen


def test_a_trigger_that_is_repeated_after_its_topic_is_gone(store: GrowingStore) -> None:
    store.add("epochs", 0, 2)
    query = Query(store.url)
    start = query.start()
    end = query.reader.latestOffset(start, ReadAllAvailable())
    store.expire("epochs", 0, 2)
    query.restart()
    with pytest.raises(OutOfRangeError, match=r"epochs-0: .* no segment any more"):
        query.read(start, end)
    lenient = Query(store.url, failOnDataLoss="false")
    assert lenient.read(start, end) == []
    assert lenient.read(end, end) == []


def test_a_topic_that_is_not_there(store: GrowingStore) -> None:
    with pytest.raises(OutOfRangeError, match="no such topic"):
        Query(store.url, subscribe="epoch").start()


# -- a log directory


def test_a_directory_is_read_up_to_the_high_watermark(tmp_path: Path) -> None:
    logs = GrowingLogDir(tmp_path / "disk")
    logs.show("epochs-0", 1, 40)
    query = Query(str(logs.root))
    query.trigger()
    assert query.seen() == [one for one in EPOCHS if one < 40]
    logs.show("epochs-0", 3, 300)
    query.trigger()
    assert query.seen() == [one for one in EPOCHS if one < 300]
    logs.show("epochs-0", 4, EPOCHS[-1] + 1)
    query.trigger()
    assert query.seen() == EPOCHS


def test_a_directory_without_a_checkpoint_is_read_as_far_as_it_is_rolled(tmp_path: Path) -> None:
    logs = GrowingLogDir(tmp_path / "disk")
    logs.show("epochs-0", 3, None)
    query = Query(str(logs.root))
    query.trigger()
    active = sorted((logs.root / "epochs-0").glob("*.log"))[-1]
    assert query.seen() == [one for one in EPOCHS if one < int(active.stem)]
    assert len(scan_segment(active))


# -- offsets


KEYS = st.builds(TopicPartition, st.sampled_from(["a", "b", "c"]), st.integers(0, 3))


@given(st.dictionaries(KEYS, st.integers(0, 1 << 40)))
def test_offsets_come_back_from_their_json(offsets: dict[TopicPartition, int]) -> None:
    written = json.dumps(as_json(offsets))
    assert from_json(json.loads(written)) == offsets
    shuffled = dict(reversed(offsets.items()))
    assert json.dumps(as_json(shuffled)) == written


@pytest.mark.parametrize("written", [{"a": 3}, {"a": {"x": 1}}, {"a": {"0": "y"}}, ["a"], 7])
def test_offsets_of_another_source_are_refused(written: Any) -> None:
    with pytest.raises(ConfigError, match="is it the checkpoint of another source"):
        from_json(written)


@given(
    st.dictionaries(KEYS, st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1),
    st.integers(1, 500),
)
def test_a_limit_is_shared_out(sizes: dict[TopicPartition, tuple[int, int]], most: int) -> None:
    begin = {key: first for key, (first, _) in sizes.items()}
    end = {key: first + size for key, (first, size) in sizes.items()}
    total = sum(size for _, size in sizes.values())
    found = limited(begin, end, most)
    moved = {key: found[key] - begin[key] for key in begin}
    assert all(0 <= moved[key] <= sizes[key][1] for key in moved)
    assert all(moved[key] > 0 for key in moved if sizes[key][1])
    assert sum(moved.values()) <= most + len(sizes)
    assert total > most or found == end
    for _ in range(total + 1):
        if found == end:
            break
        found = limited(found, end, most)
    assert found == end


def test_what_is_gone_stands_still_and_what_is_new_begins_at_its_start() -> None:
    gone, here, new = (TopicPartition("a", number) for number in range(3))
    held = [(Partition("a", None, 1), (5, 20)), (Partition("a", None, 2), (7, 9))]
    begin, end = advanced({gone: 4, here: 10}, held, fail_on_data_loss=True)
    assert begin == {gone: 4, here: 10, new: 7}
    assert end == {gone: 4, here: 20, new: 9}
