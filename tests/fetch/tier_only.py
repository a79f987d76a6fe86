"""A partition that exists in the tier only."""

from __future__ import annotations

from tests.fetch.tier import (
    PARTITION,
    Tier,
    tier_only,
)
from tierlog.reader.types import FetchView
from tierlog.types import TopicIdPartition

END = 200


class TierOnly:
    """A host whose disk has nothing left of the log."""

    def __init__(self, tier: Tier) -> None:
        self._view = tier_only(tier, END)

    def view(self, partition: TopicIdPartition) -> FetchView | None:
        return self._view if partition == PARTITION else None
