"""The settings of consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from tierlog.config.kinds import MAX_INT32, setting, whole_number
from tierlog.config.sections import Section

__all__ = ["GroupConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(Section):
    """Consumer groups of `tierlog serve`, and how long their committed offsets are kept."""

    min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        whole_number(1, MAX_INT32),
        6_000,
        "Shortest session timeout that a member may request.",
    )
    max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        whole_number(1, MAX_INT32),
        1_800_000,
        "Longest session timeout that a member may request.",
    )
    initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        whole_number(0, MAX_INT32),
        3_000,
        "How long the first rebalance of an empty group waits for further members. Each member "
        "that joins meanwhile prolongs the wait, up to the rebalance timeout of the members.",
    )
    max_size: int = setting(
        "group.max.size",
        whole_number(1, MAX_INT32),
        MAX_INT32,
        "Largest number of members of a group.",
    )
    max_groups: int = setting(
        "tierlog.group.max.groups",
        whole_number(1, MAX_INT32),
        10_000,
        "Largest number of groups that have members or committed offsets. A further group is "
        "refused with COORDINATOR_NOT_AVAILABLE, which clients retry.",
    )
    memory_bytes: int = setting(
        "tierlog.group.memory.bytes",
        whole_number(1, 1 << 40),
        64 << 20,
        "Most memory for the metadata and the assignments of all members. A member that would "
        "exceed this limit is refused with COORDINATOR_NOT_AVAILABLE, which clients retry.",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        whole_number(0, MAX_INT32),
        4_096,
        "Longest text that a client may store with a committed offset.",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        whole_number(1, MAX_INT32),
        10_080,
        "How long committed offsets are kept. The time starts at the commit, or when the group "
        "loses its last member, whichever is later. While a group has members, offsets of its "
        "topics do not expire.",
    )
