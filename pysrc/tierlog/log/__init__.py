"""Kafka's log on local disk, read only: segments, checkpoints, a broker's log directories.

Modules: ``checkpoint`` (the small text files), ``files`` (opening files a broker owns),
``log_dir`` (what lies in a broker's directories), ``eligibility`` (which segments may be copied),
``transactions`` (which transactions are open), ``segment_checks`` (do scanned batches fit their
segment). Nothing here writes, locks or maps a file.
"""

from __future__ import annotations
