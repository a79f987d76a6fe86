"""The lineage that a listing of segments shows."""

from __future__ import annotations

from tierlog.log.checkpoint import EpochEntry, LeaderEpochs


def lineage_of(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochEntry(*entry) for entry in entries))
