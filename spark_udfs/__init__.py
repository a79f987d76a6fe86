"""PySpark over the same native core: bulk codecs for segments and indexes."""
