"""What handlers may ask: the parts of a node, and the view of its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tierlog.clock import Clock, SystemClock
from tierlog.config import Config
from tierlog.node.cluster_view import ClusterView

__all__ = ["ClusterSource", "Node"]


class ClusterSource(Protocol):
    """Keeps the view of the cluster up to date."""

    def view(self) -> ClusterView:
        """Return the latest view."""
        ...


@dataclass(kw_only=True)
class Node:
    """One node. ``versions``: the lowest and highest version of each API, by its key."""

    cluster: ClusterSource
    config: Config = field(default_factory=Config)
    clock: Clock = field(default_factory=SystemClock)
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def view(self) -> ClusterView:
        """The cluster now."""
        return self.cluster.view()
