"""The index cache: verified `.indexes` objects of remote segments, in memory and on disk."""
