"""Kafka's log on local disk, read only: segments, checkpoints, a broker's log directories.

* ``segment``: the native scanner; ``segment_checks``: do scanned batches fit their segment
* ``checkpoint``: the small text files; ``files``: opening files that a broker owns
* ``log_dir``, with ``names`` and ``segment_files``: the listing of a broker's directories
* ``transactions``: which transactions are open; ``eligibility``: which segments may be copied

Nothing here writes, locks or maps a file.
"""

from __future__ import annotations
