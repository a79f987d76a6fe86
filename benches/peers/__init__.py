"""The peers that tierlog is measured against. Each does the same work in its own best way."""

from __future__ import annotations
