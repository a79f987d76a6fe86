"""Kafka's log on local disk: segments, checkpoints, a broker's log directories.

* ``segment``: the native scanner; ``segment_checks``: do scanned batches fit their segment
* ``checkpoint``: the small text files; ``files``: opening files that a broker owns
* ``log_dir``, with ``names`` and ``segment_files``: the listing of a broker's directories
* ``transactions``: which transactions are open; ``eligibility``: which segments may be copied
* ``writer``: writes such directories, for a node

Nothing outside of ``writer`` writes, locks or maps a file.
"""

from __future__ import annotations
