"""Holds a store against what it should be."""
