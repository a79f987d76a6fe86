"""Whom tierlog is measured against, each doing the same work in its own best way."""

from __future__ import annotations
