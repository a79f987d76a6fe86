"""The offsets of a stream, in the form that Spark's Kafka source writes into its checkpoints.

    {"orders": {"0": 23, "1": 7}}        the next offset to read in each partition

Pure functions over plain values, without Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tierlog.errors import ConfigError, OutOfRangeError
from tierlog.log.checkpoint import TopicPartition
from tierlog.tables.plan import Partition

__all__ = ["StreamOffsets", "advanced", "as_json", "check_all_there", "from_json", "limited"]

StreamOffsets = dict[TopicPartition, int]


def as_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return the offsets as sorted JSON, since Spark compares the text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(written: Mapping[str, Mapping[str, int]]) -> StreamOffsets:
    """Parse the offsets of a checkpoint. Raises ConfigError for other content, such as the
    checkpoint of another source."""
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in written.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            'checkpoint: expected offsets like {"topic": {"0": 23}}, found '
            f"{str(written)[:200]}; is it the checkpoint of another source?"
        ) from None


def advanced(
    known: Mapping[TopicPartition, int],
    held: Iterable[tuple[Partition, tuple[int, int]]],
    *,
    fail_on_data_loss: bool,
) -> tuple[StreamOffsets, StreamOffsets]:
    """Return the offsets from which and up to which a stream can read, in all partitions of the
    stream.

    `known` has the next offsets of the stream, and `held` has the bounds of each partition that
    exists. A new partition is read from its first offset. If a partition does not exist at present,
    its offset does not change. With ``fail_on_data_loss``, OutOfRangeError is raised if a log ends
    below the offsets already read, since the log was truncated or is another log.
    """
    begin, end = dict(known), dict(known)
    for partition, (first, after) in held:
        key = TopicPartition(partition.topic, partition.partition)
        begin.setdefault(key, first)
        if fail_on_data_loss and after < begin[key]:
            raise OutOfRangeError(
                f"{partition}: expected the log to continue at offset {begin[key]}, which the "
                f"stream has reached, found its end at {after}: the log was truncated, or the "
                "topic was created again; failOnDataLoss=false waits until the log reaches it"
            )
        end[key] = max(begin[key], after)
    return begin, end


def check_all_there(
    begin: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    there: Collection[TopicPartition],
) -> None:
    """Raise OutOfRangeError when a partition with records to read has no segment left."""
    for key, after in end.items():
        first = begin.get(key)
        if key not in there and (first is None or first < after):
            raise OutOfRangeError(
                f"{key.topic}-{key.partition}: expected offsets up to {after - 1}, found no "
                "segment any more; failOnDataLoss=false continues without them"
            )


def limited(
    begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], max_offsets: int
) -> StreamOffsets:
    """Return the offsets at which all partitions together have advanced by about `max_offsets`.
    Each partition that has waiting records advances by its share of them, and by at least one
    record."""
    waiting = {key: after - begin[key] for key, after in end.items()}
    total = sum(waiting.values())
    if total <= max_offsets:
        return dict(end)
    return {
        key: begin[key] + min(size, max(1, max_offsets * size // total))
        for key, size in waiting.items()
    }
