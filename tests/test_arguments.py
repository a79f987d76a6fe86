"""A wrong type of any argument of any public function is a TypeError that names the argument."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tierlog
from tests.kafka_tools.golden import DATA_DIR, golden_segments
from tierlog.arguments import INTEGER, TEXT, optional, takes

SEGMENT = str(golden_segments("codec-none")[0].path)
DISK = str(DATA_DIR / "clean" / "disk1")
FUNCTIONS = [name for name in tierlog.__all__ if inspect.isroutine(getattr(tierlog, name))]


class Host:
    """A host without partitions."""

    def view(self, _: tierlog.TopicIdPartition) -> None:
        return None


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """For each function the arguments that it needs."""
    store = tierlog.open_store(tmp_path_factory.mktemp("store").as_uri())
    metadata = tierlog.bucket_metadata(store)
    plan = tierlog.plan_rebuild(DISK, target=None, dry_run=True, now_ms=0)
    column = [1]
    read = {"source": DISK, "topic": "codec-none", "partition": 0}
    store.put_bytes(
        "cluster.json", b'{"cluster_id": "AAAAAAAAAAAAAAAAAAAAAQ", "format_version": 1}'
    )
    return {
        "audit_store": {"url": store.url, "rules": tierlog.AuditRules(now_ms=0)},
        "bucket_metadata": {"store": store},
        "decode_records": {"source": SEGMENT},
        "decode_remote_log_index": {"data": b""},
        "encode_remote_log_index": {
            "first_offset": column,
            "last_offset": column,
            "first_timestamp_ms": column,
            "last_timestamp_ms": column,
            "data_length": column,
            "rdi": [b"x"],
        },
        "load_config": {},
        "open_fetcher": {
            "host": Host(),
            "storage": tierlog.ObjectStorageManager(store),
            "metadata": metadata,
        },
        "open_log_dir": {"path": DISK},
        "open_reader": {"source": DISK},
        "open_store": {"url": "memory:///arguments"},
        "plan_rebuild": {"source": DISK, "target": None, "dry_run": True, "now_ms": 0},
        "read": read,
        "read_async": read,
        "rebuild_indexes": {"source": SEGMENT},
        "rebuild_report": {"plan": plan, "outcomes": []},
        "rebuild_task": {"task": next(iter(plan.tasks))},
        "remote_index_task": {"task": None},
        "scan_segment": {"source": SEGMENT},
    }


def call(name: str, arguments: dict[str, Any]) -> None:
    """Call the function, and begin with what it returns."""
    result = getattr(tierlog, name)(**arguments)
    if inspect.isasyncgen(result):

        async def first() -> None:
            async for _ in result:
                break
            await result.aclose()

        asyncio.run(first())
    elif isinstance(result, tierlog.Fetcher):
        result.close()
    elif isinstance(result, Iterator):
        next(result, None)


def wrong_values(annotation: str) -> list[object]:
    values = [object(), 1.5]
    if "int" in annotation and "str" not in annotation:
        values += ["1"]
    if "str" in annotation and "int" not in annotation and "Buffer" not in annotation:
        values += [1]
    return values


def parameters(name: str) -> list[inspect.Parameter]:
    found = inspect.signature(getattr(tierlog, name)).parameters.values()
    return [one for one in found if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


@pytest.mark.parametrize(
    ("name", "parameter"),
    [(name, one) for name in FUNCTIONS for one in parameters(name)],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_wrong_type_is_a_sentence(
    sound: dict[str, dict[str, Any]], name: str, parameter: inspect.Parameter
) -> None:
    values = wrong_values(str(parameter.annotation))
    if parameter.default is parameter.empty and sound[name][parameter.name] is not None:
        values.append(None)
    for wrong in values:
        with pytest.raises(TypeError) as caught:
            call(name, sound[name] | {parameter.name: wrong})
        found = "None" if wrong is None else type(wrong).__name__
        text = str(caught.value)
        assert re.fullmatch(rf"{parameter.name}: expected .+, found {found}", text), text


TASKS = ("remote_index_task",)


@pytest.mark.parametrize("name", [one for one in FUNCTIONS if one not in TASKS])
def test_sound_arguments_pass(sound: dict[str, dict[str, Any]], name: str) -> None:
    call(name, sound[name])


def test_every_further_path_is_checked() -> None:
    with pytest.raises(TypeError, match=r"more: expected a path .*, found int"):
        tierlog.open_log_dir(DISK, 1)  # type: ignore[arg-type]


def test_the_value_is_not_shown() -> None:
    """A URL in bytes may hold a password."""
    with pytest.raises(TypeError, match=r"url: expected a str, found bytes$"):
        tierlog.open_store(b"s3://key:secret@b")  # type: ignore[arg-type]


def test_first_wrong_argument_is_named() -> None:
    @takes(topic=TEXT, end_offset=optional(INTEGER), more=TEXT)
    def read(topic: str, end_offset: int | None = None, *more: str) -> object:
        return topic, end_offset, more

    assert read("t") == ("t", None, ())
    assert read("t", 1, "a", "b") == ("t", 1, ("a", "b"))
    with pytest.raises(TypeError, match=r"end_offset: expected an integer or None, found str$"):
        read("t", "1", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"more: expected a str, found None"):
        read("t", 1, "a", None)  # type: ignore[arg-type]


def test_paths_may_be_objects(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tierlog.open_reader(tmp_path / "none")
