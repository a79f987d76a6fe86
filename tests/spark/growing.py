"""A store and a log directory that grow and shrink while something reads them.

Both hold what a real broker wrote: a store gets the objects of another one, segment by segment as
a copy would, a directory the files of a golden one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kafka_tools.golden import DATA_DIR
from tests.sidecar.configs import tier_config
from tierlog.clock import ManualClock
from tierlog.sidecar import Sidecar

__all__ = ["GrowingLogDir", "GrowingStore", "fill_store"]

DISKS = [str(DATA_DIR / "clean" / name) for name in ("disk1", "disk2")]


def fill_store(folder: Path) -> Path:
    """A store with every segment of the golden logs that may be copied."""
    with Sidecar(
        DISKS,
        (folder / "store").as_uri(),
        state_dir=str(folder / "state"),
        config=tier_config(include_compacted_topics=True),
        clock=ManualClock(),
    ) as sidecar:
        assert sidecar.run_once().ok
    return folder / "store"


class GrowingStore:
    """A store that gets segments of `whole`."""

    def __init__(self, whole: Path, root: Path) -> None:
        self._whole = whole
        self._root = root
        root.mkdir()
        shutil.copy(whole / "cluster.json", root)

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def segments(self, topic: str, partition: int = 0) -> list[Path]:
        """The `.log` objects of a partition in the other store, by base offset."""
        return sorted(
            path.relative_to(self._whole)
            for path in self._whole.glob(f"{topic}-*/{partition}/*.log")
            if path.parts[-3][:-23] == topic
        )

    def add(self, topic: str, first: int, last: int, partition: int = 0) -> None:
        """Segments number `first` to `last`, not included."""
        for log in self.segments(topic, partition)[first:last]:
            (self._root / log).parent.mkdir(parents=True, exist_ok=True)
            for path in (log, log.with_suffix(".indexes")):
                shutil.copy(self._whole / path, self._root / path)

    def expire(self, topic: str, first: int, last: int, partition: int = 0) -> None:
        """As retention does: the indexes first."""
        for log in self.segments(topic, partition)[first:last]:
            (self._root / log.with_suffix(".indexes")).unlink()
            (self._root / log).unlink()


class GrowingLogDir:
    """A broker's directory with some of the first segments of golden partitions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        shutil.copy(DATA_DIR / "clean" / "disk1" / "meta.properties", root)

    def show(self, name: str, segments: int, high_watermark: int | None) -> None:
        """The partition as it was when it had so many, the last of them active."""
        source = next(DATA_DIR.glob(f"clean/disk*/{name}"))
        folder = self.root / name
        folder.mkdir(exist_ok=True)
        for log in sorted(source.glob("*.log"))[:segments]:
            shutil.copy(log, folder)
        for file in ("leader-epoch-checkpoint", "partition.metadata"):
            shutil.copy(source / file, folder)
        checkpoint = self.root / "replication-offset-checkpoint"
        checkpoint.unlink(missing_ok=True)
        if high_watermark is not None:
            topic, _, partition = name.rpartition("-")
            checkpoint.write_text(f"0\n1\n{topic} {partition} {high_watermark}\n")
