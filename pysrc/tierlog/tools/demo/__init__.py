"""Tiers the bundled logs, reads them back and reports."""
