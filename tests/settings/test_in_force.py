"""Every setting changes what a shipped command or a documented public call does.

A row of the table has a value and an observation. What is observed under that value differs from
what is observed under the default, which is the same each time.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.batch_bombs import TOPIC as BOMBS
from tests.batch_bombs import value_bomb, write_log_dir
from tests.settings import (
    compacting,
    deleting,
    fetching,
    grouping,
    serving,
    tiering,
    topics,
    transacting,
)
from tests.settings.observing import LOG_DIR, Observe, Place, command, files_of
from tierlog.config import settings
from tierlog.config.load import SECTIONS
from tierlog.config.topic import TOPIC_SETTINGS, topic_config
from tierlog.errors import ConfigError
from tierlog.remote.segment.bucket import list_segments
from tierlog.remote.segment.indexes import IndexKind
from tierlog.remote.segment.storage import ObjectStorageManager
from tierlog.remote.urls import LocalStore


def section_sizes(place: Place, kind: IndexKind) -> list[int]:
    """The sizes of that section in the `.indexes` objects of a store, by base offset."""
    store = LocalStore(place.store)
    storage = ObjectStorageManager(store)
    segments = sorted(list_segments(store), key=lambda one: one.start_offset)
    return [len(storage.fetch_indexes(one, [kind])[kind]) for one in segments]


def offset_indexes(place: Place) -> list[int]:
    assert place.tier().code == 0
    return section_sizes(place, IndexKind.OFFSET)


def runs_after_a_rebuild(place: Place) -> list[int]:
    """The remoteLogIndex of `.indexes` objects that were lost."""
    place.tiered()
    for path in sorted(place.store.rglob("*.indexes"))[:-1]:
        path.unlink()
    for path in place.store.rglob("*.log"):
        os.utime(path, (0, 0))  # no copy is still under way
    said = command("index", "rebuild", place.store.as_uri(), "--config", place.write_config())
    assert said.code == 0, said.err
    return section_sizes(place, IndexKind.REMOTE_LOG)


def rebuilt_index_files(place: Place) -> int:
    """How many remote index files a rebuild makes."""
    place.tiered()
    target = place.folder / "index"
    said = command(
        "index", "rebuild", place.store.as_uri(), "--to", str(target), "--config",
        place.write_config(),
    )  # fmt: skip
    assert said.code == 0, said.err
    return len(files_of(target))


def archived(place: Place) -> int:
    """How many segments a pass copies."""
    assert place.tier().code == 0
    return len(list(list_segments(LocalStore(place.store))))


def archived_after_retention(place: Place) -> int:
    """How many segments are left where retention would delete all."""
    place.tiered().tier("--retention-ms", "1h")
    return len(list(list_segments(LocalStore(place.store))))


def first_record_of_a_bomb(place: Place) -> int:
    """The exit code of reading a batch that opens to 70 MiB."""
    logs = write_log_dir(place.folder / "logs", [[value_bomb(0, 70 << 20)]])
    return command(
        "cat", str(logs), f"{BOMBS}:0", "-f", "%S", "--config", place.write_config()
    ).code


MANAGERS = "tests.settings.managers"
STORAGE_CLASS = "remote.log.storage.manager.class.name"
METADATA_CLASS = "remote.log.metadata.manager.class.name"
COPY, FETCH = "remote.log.manager.copy", "remote.log.manager.fetch"
COPY_LIMIT = {f"{COPY}.max.bytes.per.second": "200"}
FETCH_LIMIT = {f"{FETCH}.max.bytes.per.second": "2000"}
# A fetch asks for more than a window holds: reserved, it is paid for to the end.
LOW_FETCH_LIMIT = {f"{FETCH}.max.bytes.per.second": "300"}
LATE = {"tierlog.copy.lag.ms": "100000000000000"}
# Setting: a value, what is observed, and what else is set both times.
Row = tuple[str, Observe] | tuple[str, Observe, dict[str, str]]
ROWS: dict[str, Row] = {
    "log.dirs": (LOG_DIR, tiering.directories),
    "log.index.interval.bytes": ("1000000", offset_indexes),
    "log.cleaner.dedupe.buffer.size": ("1024", compacting.ends_of_rounds),
    "log.segment.bytes": (
        "2147483647",
        tiering.oversize_warning,
        {f"{COPY}.max.bytes.per.second": "20000000"},
    ),
    "tierlog.batch.max.decompressed.bytes": (str(72 << 20), first_record_of_a_bomb),
    "remote.log.manager.task.interval.ms": ("5000", tiering.next_run_ms),
    "remote.log.manager.copier.thread.pool.size": ("3", tiering.threads),
    "remote.log.manager.expiration.thread.pool.size": ("3", tiering.threads),
    "remote.log.manager.follower.thread.pool.size": ("3", tiering.threads),
    "remote.log.manager.task.retry.backoff.ms": ("700", tiering.retries_ms),
    "remote.log.manager.task.retry.backoff.max.ms": ("4000", tiering.retries_ms),
    "remote.log.manager.task.retry.jitter": ("0.5", tiering.retries_ms),
    "tierlog.retention.max.deleted.ratio": ("1", archived_after_retention),
    "remote.log.reader.threads": ("3", fetching.held_reads),
    "remote.log.reader.max.pending.tasks": (
        "1",
        fetching.held_reads,
        {"remote.log.reader.threads": "2"},
    ),
    "remote.fetch.max.wait.ms": ("3000", fetching.waits_long),
    "tierlog.fetch.memory.bytes": ("30000", fetching.largest_answer),
    "tierlog.fetch.local.memory.bytes": ("30000", fetching.local_answers_at_a_time),
    "tierlog.metrics.max.clients": ("5", fetching.client_metrics),
    "remote.log.index.file.cache.total.size.bytes": ("1", fetching.index_requests),
    "remote.log.index.file.cache.ttl.ms": ("-1", fetching.index_requests),
    "tierlog.remote.index.interval.bytes": ("1000", runs_after_a_rebuild),
    "tierlog.remote.index.cache.dir": ("{folder}/cache", fetching.cached_indexes),
    "tierlog.remote.index.dir": ("{folder}/index", tiering.index_files),
    "tierlog.remote.index.rotate.bytes": ("100", rebuilt_index_files),
    "tierlog.remote.index.rotate.ms": ("1", rebuilt_index_files),
    f"{COPY}.max.bytes.per.second": ("200", tiering.waited_ms),
    f"{COPY}.quota.window.num": ("5", tiering.waited_ms, COPY_LIMIT),
    f"{COPY}.quota.window.size.seconds": ("3", tiering.waited_ms, COPY_LIMIT),
    f"{FETCH}.max.bytes.per.second": ("200", fetching.cat_waits_ms),
    f"{FETCH}.quota.window.num": ("2", fetching.throttled_bytes, FETCH_LIMIT),
    f"{FETCH}.quota.window.size.seconds": ("3", fetching.throttled_bytes, FETCH_LIMIT),
    "tierlog.fetch.topic.max.bytes.per.second": ("2000", fetching.throttled_bytes),
    "tierlog.fetch.topic.max.bytes.per.second.overrides": (
        "made=2000",
        fetching.throttled_bytes,
    ),
    "tierlog.fetch.client.max.bytes.per.second": ("2000", fetching.throttled_bytes),
    "tierlog.fetch.client.max.bytes.per.second.overrides": (
        "someone=2000",
        fetching.throttled_bytes,
    ),
    "tierlog.copy.quota.mode": ("pace", tiering.waited_ms, COPY_LIMIT),
    "tierlog.fetch.quota.mode": ("reserve", fetching.throttled_bytes, LOW_FETCH_LIMIT),
    "remote.log.manager.quota.rate.mode": ("elapsed", fetching.throttled_bytes, FETCH_LIMIT),
    "tierlog.store.url": ("file://{folder}/store", tiering.store_of_the_settings),
    "tierlog.state.dir": ("{folder}/elsewhere", tiering.state_of_the_settings),
    "tierlog.bootstrap.servers": ("127.0.0.1:1", tiering.tiered),
    "tierlog.zookeeper.connect": ("127.0.0.1:1", tiering.tiered),
    "tierlog.metadata": ("topic", tiering.tiered),
    "tierlog.include.internal.topics": (
        "true",
        tiering.internal,
        {"tierlog.include.compacted.topics": "true"},
    ),
    "tierlog.include.compacted.topics": ("true", tiering.compacted),
    "tierlog.topics": ("epochs", tiering.whole_directory),
    "tierlog.cluster.id": ("abcdefghijklmnopqrstuv", tiering.cluster_of_the_settings),
    "tierlog.retention.ms": ("1000", tiering.tiered_twice),
    "tierlog.retention.bytes": ("1", tiering.tiered_twice),
    "tierlog.deleted.topic.retention.ms": ("1000", deleting.archived_of_a_deleted_topic),
    "tierlog.store.check.interval.ms": ("-1", tiering.mended),
    "tierlog.copy.lag.ms": (LATE["tierlog.copy.lag.ms"], tiering.tiered),
    "tierlog.copy.lag.bytes": ("0", tiering.tiered, LATE),
    "remote.log.copy.disable": ("true", archived),
    "tierlog.metrics.listen": ("127.0.0.1:0", tiering.metrics_address),
    "tierlog.close.timeout.ms": (
        "0",
        tiering.patience_at_the_end,
        {"tierlog.close.timeout.ms": "3000", STORAGE_CLASS: f"{MANAGERS}:HangingStorage"},
    ),
    "tierlog.serve.listen": ("[::1]:0", serving.listens_at),
    "tierlog.serve.refresh.interval.ms": ("100", serving.looks_again),
    "fetch.max.bytes": ("2000", serving.answer_bytes),
    "remote.list.offsets.request.timeout.ms": ("1234", serving.time_limit_ms),
    "socket.request.max.bytes": ("100", serving.largest_request),
    "queued.max.request.bytes": (str(1 << 20), serving.requests_in_memory),
    "max.connections": ("3", serving.clients_at_a_time),
    "max.connections.per.ip": ("3", serving.clients_at_a_time),
    "connections.max.idle.ms": ("1000", serving.ends_after_ms),
    "tierlog.serve.connection.stall.ms": ("1000", serving.ends_after_ms),
    "group.min.session.timeout.ms": ("20000", grouping.first_answer),
    "group.max.session.timeout.ms": ("8000", grouping.first_answer),
    "group.initial.rebalance.delay.ms": ("1000", grouping.first_rebalance_ms),
    "group.max.size": ("1", grouping.second_member),
    "tierlog.group.max.groups": ("2", grouping.commits_of_groups),
    "tierlog.group.memory.bytes": ("3000", grouping.first_answer),
    "offset.metadata.max.bytes": ("3", grouping.commits_of_groups),
    "offsets.retention.minutes": ("60", grouping.offset_after_two_hours),
    "transaction.max.timeout.ms": ("59999", transacting.first_starts),
    "transactional.id.expiration.ms": ("7200000", transacting.forgotten_after_ms),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": (
        "1000",
        transacting.aborted_after_ms,
    ),
    "transaction.remove.expired.transaction.cleanup.interval.ms": (
        "7200000",
        transacting.forgotten_after_ms,
        {"transactional.id.expiration.ms": "1000"},
    ),
    "tierlog.transaction.max.ids": ("1", transacting.first_starts),
    STORAGE_CLASS: (f"{MANAGERS}:FolderStorage", tiering.configured),
    "remote.log.storage.manager.impl.prefix": (
        "mine.",
        tiering.configured,
        {STORAGE_CLASS: f"{MANAGERS}:FolderStorage", "mine.a": "1", "rsm.config.b": "2"},
    ),
    METADATA_CLASS: (f"{MANAGERS}:FolderMetadata", tiering.state_database),
    "remote.log.metadata.manager.impl.prefix": (
        "mine.",
        tiering.configured,
        {METADATA_CLASS: f"{MANAGERS}:FolderMetadata", "mine.a": "1", "rlmm.config.b": "2"},
    ),
    "remote.log.metadata.custom.metadata.max.bytes": (
        "10",
        tiering.tiered,
        {STORAGE_CLASS: f"{MANAGERS}:FolderStorage"},
    ),
}

TIERED = {"remote.storage.enable": "true"}
SMALL = {"internal.segment.bytes": "2000"}
COMPACTED = {"cleanup.policy": "compact", **SMALL}
# Of settings of a topic: the value, what observes it, and settings that both topics have.
TOPIC_ROWS: dict[str, Row] = {
    "cleanup.policy": ("compact", compacting.compacted_log, SMALL),
    "delete.retention.ms": ("0", compacting.compacted_log, COMPACTED),
    "file.delete.delay.ms": ("0", topics.kept_log, {"internal.segment.bytes": "100000"}),
    "flush.messages": ("1", topics.kept_log),
    "index.interval.bytes": ("100", topics.kept_log, {"internal.segment.bytes": "100000"}),
    "local.retention.bytes": ("1", topics.tiered_log, TIERED),
    "local.retention.ms": ("1", topics.tiered_log, TIERED),
    "max.compaction.lag.ms": (
        "3600000",
        compacting.compacted_log,
        {**COMPACTED, "min.cleanable.dirty.ratio": "0.95"},
    ),
    "max.message.bytes": ("2000000", topics.kept_log),
    "message.timestamp.after.max.ms": ("9000000", topics.kept_log),
    "message.timestamp.before.max.ms": ("9000000", topics.kept_log),
    "message.timestamp.type": ("LogAppendTime", topics.kept_log),
    "min.cleanable.dirty.ratio": ("0.95", compacting.compacted_log, COMPACTED),
    "min.compaction.lag.ms": ("7200000", compacting.compacted_log, COMPACTED),
    "remote.log.copy.disable": ("true", topics.tiered_log, TIERED),
    "remote.log.delete.on.disable": ("true", topics.refused_change),
    "remote.storage.enable": ("true", topics.tiered_log),
    "retention.bytes": ("5000", topics.kept_log, {"internal.segment.bytes": "5000"}),
    "retention.ms": ("60000", topics.kept_log, {"internal.segment.bytes": "5000"}),
    "segment.bytes": ("1048576", topics.kept_log),
    "internal.segment.bytes": ("5000", topics.kept_log),
    "segment.index.bytes": ("64", topics.kept_log),
    "segment.ms": ("600000", topics.kept_log),
}


def test_every_setting_has_a_row() -> None:
    names = [one.name for section in SECTIONS.values() for _, one in settings(section)]
    assert sorted(ROWS) == sorted(names)
    assert sorted(TOPIC_ROWS) == sorted(TOPIC_SETTINGS)


@pytest.mark.parametrize("policy", ["compress", "delete,compress", ""])
def test_a_policy_that_a_node_does_not_have_is_refused(policy: str) -> None:
    with pytest.raises(ConfigError, match=r"cleanup\.policy: expected delete, compact or both"):
        topic_config({"cleanup.policy": policy})


@pytest.mark.parametrize("name", ROWS)
def test_setting_is_in_force(name: str, tmp_path: Path) -> None:
    check_in_force(name, ROWS[name], tmp_path)


@pytest.mark.parametrize("name", TOPIC_ROWS)
def test_setting_of_a_topic_is_in_force(name: str, tmp_path: Path) -> None:
    check_in_force(name, TOPIC_ROWS[name], tmp_path)


def check_in_force(name: str, row: Row, tmp_path: Path) -> None:
    value, observe, *more = row
    base = more[0] if more else {}

    def observed(folder: str, properties: dict[str, str]) -> object:
        place = Place(tmp_path / folder, {})
        place.folder.mkdir()
        place.properties = {
            key: text.replace("{folder}", str(place.folder))
            for key, text in {**base, **properties}.items()
        }
        return observe(place)

    default = observed("default", {})
    assert default == observed("again", {})
    assert observed("changed", {name: value}) != default
