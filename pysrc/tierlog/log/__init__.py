"""Kafka's log on local disk: segments, checkpoints, a broker's log directories.

* ``segment`` scans a segment; ``segment_checks`` checks that its batches belong to it.
* ``checkpoint`` parses the small text files; ``files`` opens files that a broker owns.
* ``log_dir``, with ``names`` and ``segment_files``, lists a broker's directories.
* ``transactions`` finds open transactions; ``eligibility`` decides which segments may be copied.
* ``writer`` writes such directories for a node.

Only ``writer`` writes, locks or maps files.
"""

from __future__ import annotations
