"""What one batch may open to is a setting, in force wherever records are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import tierlog
from tests.batch_bombs import TOPIC, value_bomb, write_log_dir
from tests.fetch.views import whole_view
from tests.oracle import build
from tests.oracle.model import Record
from tests.settings.observing import Said, command
from tests.spark.source import batches_of, tasks_of
from tierlog.config import Config, LogConfig
from tierlog.fetch.setup import open_fetcher
from tierlog.reader.types import FetchError, FetchView
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.types import TopicIdPartition

NAME = "tierlog.batch.max.decompressed.bytes"
VARIABLE = "TIERLOG_BATCH_MAX_DECOMPRESSED_BYTES"
SIZE_BYTES = 70 << 20
ENOUGH = str(72 << 20)
GZIP = 1
PLACES = pytest.mark.parametrize("place", ["logs", "store"])


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A batch that opens to 70 MiB, in a log directory and in a store."""
    root = tmp_path_factory.mktemp("large")
    logs = write_log_dir(root / "logs", [[value_bomb(0, SIZE_BYTES)], [value_bomb(1, 1)]])
    store = (root / "store").as_uri()
    assert command("tier", str(logs), "--to", store, "--once").code == 0
    return {"logs": str(logs), "store": store}


def cat(source: str, *arguments: str) -> Said:
    return command("cat", source, f"{TOPIC}:0", "-c", "1", "-f", "%S", *arguments)


@PLACES
def test_cat(place: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    refused = cat(places[place])
    assert refused.code == 1
    assert f"{NAME} is 67108864" in refused.err
    assert VARIABLE in refused.err
    monkeypatch.setenv(VARIABLE, ENOUGH)
    assert cat(places[place]) == Said(0, str(SIZE_BYTES), "")


@PLACES
def test_cat_with_a_settings_file(place: str, places: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"{NAME}={ENOUGH}\n")
    assert cat(places[place], "--config", str(file)) == Said(0, str(SIZE_BYTES), "")


@PLACES
def test_verify(place: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = command("verify", places[place], "--deep")
    assert found.code == 1
    assert f"{NAME} is 67108864" in found.out
    # The broker has the same bytes.
    assert "copy the segment again" not in found.out
    monkeypatch.setenv(VARIABLE, ENOUGH)
    assert command("verify", places[place], "--deep").code == 0


@PLACES
def test_read(place: str, places: dict[str, str]) -> None:
    with pytest.raises(tierlog.CorruptDataError, match="too_large") as refused:
        list(tierlog.read(places[place], TOPIC, 0, end_offset=1))
    assert f"{NAME} is 67108864" in str(refused.value)
    config = Config(log=LogConfig(batch_max_decompressed_bytes=int(ENOUGH)))
    (records,) = tierlog.read(places[place], TOPIC, 0, end_offset=1, config=config)
    assert records.values.lengths.tolist() == [SIZE_BYTES]


class OneView:
    """A host of one partition."""

    def __init__(self, view: FetchView) -> None:
        self._view = view

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return self._view


@pytest.mark.parametrize("magic", [0, 1])
def test_wrapper_of_an_old_format(
    magic: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan opens a compressed message set, too: its first offset is inside."""
    size_bytes = 100 << 20
    large = Record(offset=0, timestamp_ms=1, key=None, value=bytes(size_bytes))
    small = Record(offset=1, timestamp_ms=1, key=None, value=b"small")
    wrapper = build.legacy_wrapper([large], magic=magic, codec=GZIP)
    logs = write_log_dir(
        tmp_path / "logs", [[wrapper], [build.legacy_messages([small], magic=magic)]]
    )
    store = (tmp_path / "store").as_uri()
    tiered = command("tier", str(logs), "--to", store, "--once")
    assert tiered.code == 0, tiered.err
    assert "1 segment copied" in tiered.err
    for source in (str(logs), store):
        refused = cat(source)
        assert refused.code == 1
        assert f"{NAME} is 67108864" in refused.err
    monkeypatch.setenv(VARIABLE, str(size_bytes + 100))
    for source in (str(logs), store):
        assert cat(source) == Said(0, str(size_bytes), "")


@PLACES
def test_time_search_of_a_fetcher(place: str, places: dict[str, str]) -> None:
    view = whole_view(Path(places["logs"]), f"{TOPIC}-0")
    if place == "store":
        end = view.log_end_offset
        view = replace(view, log=replace(view.log, segments=()), local_log_start_offset=end)
    store = tierlog.open_store(places["store"])
    storage, metadata = ObjectStorageManager(store), tierlog.bucket_metadata(store)
    (partition,) = metadata.partitions()
    answers = []
    for size in (None, int(ENOUGH)):
        log = LogConfig() if size is None else LogConfig(batch_max_decompressed_bytes=size)
        with open_fetcher(OneView(view), storage, metadata, config=Config(log=log)) as fetcher:
            answers.append(fetcher.list_offset_sync(partition, 1))
    refused, found = answers
    assert refused.error is FetchError.KAFKA_STORAGE_ERROR
    assert (found.error, found.offset, found.timestamp_ms) == (FetchError.NONE, 0, 1)


@PLACES
def test_option_of_spark(place: str, places: dict[str, str]) -> None:
    options = {"path": places[place], "subscribe": TOPIC, "onCorrupt": "fail"}
    options["endingOffsets"] = f'{{"{TOPIC}": {{"0": 1}}}}'
    with pytest.raises(tierlog.CorruptDataError, match=NAME):
        batches_of(options, tasks_of(options))
    options[NAME] = ENOUGH
    (batch,) = batches_of(options, tasks_of(options))
    assert len(batch.column("value")[0].as_py()) == SIZE_BYTES


def test_driver_of_spark_has_the_variable(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_udfs.datasource import _parse

    given = {"path": places["logs"], "subscribe": TOPIC}
    monkeypatch.setenv(VARIABLE, ENOUGH)
    assert _parse(given).config.log.batch_max_decompressed_bytes == int(ENOUGH)
    assert _parse({**given, NAME: "5"}).config.log.batch_max_decompressed_bytes == 5
