"""A partition's leader-epoch-checkpoint: which leader epoch wrote which offsets."""

from __future__ import annotations

import os

from tierlog.log.checkpoint import LEADER_EPOCHS, EpochEntry, LeaderEpochs, read_leader_epochs
from tierlog.log.writer.files import write_durably

__all__ = ["EpochFile"]


class EpochFile:
    """The lineage of the local log; every change is durable before the call returns."""

    def __init__(self, directory: str) -> None:
        """Read the file; an empty lineage without one. CorruptDataError when it is damaged."""
        self._path = os.path.join(directory, LEADER_EPOCHS)
        try:
            self.epochs = read_leader_epochs(self._path)
        except FileNotFoundError:
            self.epochs = LeaderEpochs()
            self._write(self.epochs)

    @property
    def latest(self) -> int:
        """The latest epoch, -1 without one."""
        return self.epochs.entries[-1].epoch if self.epochs.entries else -1

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`; nothing to do for the latest epoch. Epochs
        that wrote nothing disappear (Kafka's ``LeaderEpochFileCache.assign``)."""
        if epoch <= self.latest:
            return
        kept = tuple(one for one in self.epochs if one.start_offset < start_offset)
        self._change(LeaderEpochs((*kept, EpochEntry(epoch, start_offset))))

    def cut_from(self, end_offset: int) -> None:
        """Forget the epochs that begin at or after the end of the log."""
        self._change(self.epochs.up_to(end_offset))

    def cut_below(self, start_offset: int) -> None:
        """Forget the epochs that end below the start of the log; the one that holds it begins
        there."""
        entries = self.epochs.entries
        if entries and entries[0].start_offset < start_offset:
            self._change(self.epochs.clipped(start_offset, 2**63 - 1))

    def _change(self, epochs: LeaderEpochs) -> None:
        if epochs != self.epochs:
            self._write(epochs)
            self.epochs = epochs

    def _write(self, epochs: LeaderEpochs) -> None:
        write_durably(self._path, epochs.encode())
