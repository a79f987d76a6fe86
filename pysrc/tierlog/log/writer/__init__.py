"""Writes Kafka's log on local disk: a partition's segments, its state files, a log directory.

* ``partition``: `PartitionWriter`, one partition: append, roll, truncate, delete, close
* ``directory``: `LogDirWriter`, a log directory: its lock, its marks, its checkpoint files
* ``batches``: batches that a node makes itself, such as transaction markers
* ``validation``: checks of batches that come from a client; ``refusal``: why one is refused
* ``producers``: sequence checks of idempotent producers
* ``segment``: the segment that is appended to; ``recovery``: opening what a crash left
* ``retention``: which local segments are deleted
* ``compaction``: when a log is compacted; ``cleaner``: a round of compaction; ``swap``: replacing
  segments by a compacted one

The formats are those of the native core. A partition takes one call at a time, from any thread; its
calls block, so an event loop makes them in a thread.
"""

from __future__ import annotations
