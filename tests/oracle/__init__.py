"""A slow, plain reading and writing of every on-disk format, to referee the native core.

It shares no code with the package under test and imports nothing of it.  ``batches.scan`` and
``batches.records`` read segments, ``build`` writes them, ``rebuild.rebuild`` derives the indexes,
``indexes``, ``producer_state`` and ``remote_index`` hold the other files, ``strategies`` makes
Hypothesis inputs of all of it.
"""

from __future__ import annotations
