"""Moving segments to the remote tier and reading partitions back.

``copy``: one segment, from a broker's directory into a store. ``reader``: a partition from a
store or a directory, as verified columns.
"""
