"""Decides which tier answers a fetch of one partition: a pure function of plain numbers.

As in Kafka, the tier answers for offsets from the log start offset up to the local log start
offset. The tier never answers a follower. It answers a consumer only while the consumer's quota has
room.
"""

from __future__ import annotations

from tierlog.reader.types import FetchError, FetchSource

__all__ = ["Decision", "decide_fetch", "decide_leader_epoch"]

Decision = tuple[FetchSource, FetchError]

_LOCAL = (FetchSource.LOCAL, FetchError.NONE)
_REMOTE = (FetchSource.REMOTE, FetchError.NONE)
_THROTTLED = (FetchSource.THROTTLED, FetchError.NONE)
_NO_BUDGET = (FetchSource.NO_BUDGET, FetchError.NONE)
_OUT_OF_RANGE = (FetchSource.ERROR, FetchError.OFFSET_OUT_OF_RANGE)
_MOVED = (FetchSource.ERROR, FetchError.OFFSET_MOVED_TO_TIERED_STORAGE)
_FENCED = (FetchSource.ERROR, FetchError.FENCED_LEADER_EPOCH)
_UNKNOWN_EPOCH = (FetchSource.ERROR, FetchError.UNKNOWN_LEADER_EPOCH)


def decide_fetch(
    fetch_offset: int,
    log_start_offset: int,
    local_log_start_offset: int,
    log_end_offset: int,
    tiered: bool,
    follower: bool,
    throttled: bool,
    left_bytes: int,
) -> Decision:
    """Return the tier that answers a fetch at `fetch_offset`, or the error.

    ``throttled``: the fetch quota of the client is used up. ``left_bytes`` is the number of bytes
    still free in the response. If no bytes are free, a read from the tier is left to the next
    request.
    """
    if not log_start_offset <= fetch_offset <= log_end_offset:
        return _OUT_OF_RANGE
    if fetch_offset >= local_log_start_offset:
        return _LOCAL
    if not tiered:
        return _OUT_OF_RANGE
    if follower:
        return _MOVED
    if throttled:
        return _THROTTLED
    return _REMOTE if left_bytes > 0 else _NO_BUDGET


def decide_leader_epoch(asked_epoch: int, leader_epoch: int) -> Decision | None:
    """Return the error for a client that knows another leader epoch; None when the epochs agree or
    the client sent none."""
    if asked_epoch < 0 or asked_epoch == leader_epoch:
        return None
    return _FENCED if asked_epoch < leader_epoch else _UNKNOWN_EPOCH
