"""Any order of copies, catch-ups, cuts, drops, losses and restarts, beside a list of entries."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.oracle import remote_index as oracle
from tests.oracle.strategies import profile
from tests.remote.index_files.model import NAMES, Model, Tiered, folder, tiered
from tests.remote.index_files.support import as_oracle, fetcher, found, metadata_of
from tierlog.remote.index_files.family import RemoteIndexFiles

FAR = 2**31 - 40
offsets = st.integers(0, 400)


class RemoteIndexFilesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index_dir = Path(tempfile.mkdtemp())
        self.pool: list[Tiered] = []
        self.seen = 0

    def teardown(self) -> None:
        shutil.rmtree(self.index_dir)

    @initialize(rotate_bytes=st.integers(1, 4_000), rotate_ms=st.sampled_from([-1, 1, 50, 100]))
    def begin(self, rotate_bytes: int, rotate_ms: int) -> None:
        self.rotation = {"rotate_bytes": rotate_bytes, "rotate_ms": rotate_ms}
        self.model = Model(**self.rotation)
        self.open()

    def open(self) -> None:
        partition = tiered(0, 0).metadata.topic_id_partition
        self.files = RemoteIndexFiles(self.index_dir, partition, **self.rotation)
        self.model.log_start_offset = 0

    # -- what happens to a partition

    @rule(
        start=st.one_of(st.none(), offsets),
        length=st.integers(1, 60),
        per_entry=st.integers(1, 20),
        leap=st.sampled_from([0, 0, 0, 0, 1, 30, FAR]),
        late_ms=st.integers(-60, 60),
        is_appended=st.booleans(),
    )
    def copy(
        self,
        start: int | None,
        length: int,
        per_entry: int,
        leap: int,
        late_ms: int,
        is_appended: bool,
    ) -> None:
        """A segment of this leader, behind the last one, or of another one anywhere."""
        self.seen += 1
        if start is None:
            ends = [source.metadata.served_end_offset for source in self.pool]
            start = max(ends, default=-1) + 1 + leap
        end = start + length - 1
        source = tiered(
            start,
            end,
            per_entry=max(per_entry, (length + 14) // 15),
            name=f"copy {self.seen}",
            timestamp_ms=lambda offset: 1_000 + (offset % 10_000) + late_ms * (offset % 3),
        )
        self.pool.append(source)
        if is_appended:
            added = self.files.append(source.metadata, source.data)
            assert added == self.model.append(source)

    @rule()
    def catch_up(self) -> None:
        added = self.files.catch_up(metadata_of(self.pool), fetcher(*self.pool))
        assert added == self.model.catch_up(self.pool)

    @rule(offset=offsets)
    def truncate(self, offset: int) -> None:
        """An unclean leader cut the log; the metadata knows, the files may be told later."""
        self.pool = [
            source.cut(min(offset, source.metadata.truncation_offset or 2**62))
            for source in self.pool
        ]
        if offset % 3:
            assert self.files.truncate_to(offset) == self.model.truncate_to(offset)

    @rule(offset=offsets)
    def expire(self, offset: int) -> None:
        self.pool = [source for source in self.pool if source.metadata.end_offset >= offset]
        assert self.files.drop_below(offset) == self.model.drop_below(offset)

    @rule()
    def rebuild(self) -> None:
        rebuilt = Model(**self.rotation)
        added = self.files.rebuild(metadata_of(self.pool), fetcher(*self.pool))
        assert added == rebuilt.catch_up(self.pool)
        rebuilt.log_start_offset = self.model.log_start_offset
        self.model = rebuilt

    # -- what happens to the files

    @rule()
    def restart(self) -> None:
        self.files.close()
        self.open()
        assert self.files.findings == ()

    @rule(number=st.integers(0, 10), kind=st.sampled_from(NAMES))
    def lose(self, number: int, kind: str) -> None:
        if self.model.files:
            file = self.model.files[number % len(self.model.files)]
            (folder(self.index_dir) / f"{file.base_offset:020d}.{kind}").unlink()
            if kind == NAMES[0]:
                self.model.files.remove(file)
            self.files.close()
            self.open()
            assert {finding.reason for finding in self.files.findings} <= {
                "missing_log",
                "stale_index",
            }

    @rule(number=st.integers(0, 10), length=st.integers(0, 5_000))
    def tear(self, number: int, length: int) -> None:
        """What a crash in the middle of an append leaves, in any of the files."""
        if self.model.files:
            file = self.model.files[number % len(self.model.files)]
            path = folder(self.index_dir) / f"{file.base_offset:020d}.{NAMES[0]}"
            data = path.read_bytes()[:length]
            path.write_bytes(data)
            kept = len(oracle.recover(data).entries)
            file.entries = file.entries[:kept]
            if not kept:
                self.model.files.remove(file)
            self.files.close()
            self.open()

    # -- what must hold

    @invariant()
    def the_files_are_those_of_the_model(self) -> None:
        assert self.files.last_offset == self.model.last_offset
        if self.model.files:
            assert found(self.index_dir) == self.model.on_disk()
        assert [as_oracle(entry) for entry in self.files.entries()] == self.model.entries

    @rule(offset=offsets, timestamp_ms=st.integers(900, 12_000))
    def look_up(self, offset: int, timestamp_ms: int) -> None:
        assert as_oracle(self.files.lookup_offset(offset)) == self.model.lookup_offset(offset)
        entry = self.files.lookup_timestamp(timestamp_ms)
        assert as_oracle(entry) == self.model.lookup_timestamp(timestamp_ms)


RemoteIndexFilesMachine.TestCase.settings = settings(
    profile(60, 3_000), stateful_step_count=25, deadline=None
)
TestRemoteIndexFiles = RemoteIndexFilesMachine.TestCase
