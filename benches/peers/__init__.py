"""The peers of tierlog in the benches. Each does the same work in the way that suits it best."""

from __future__ import annotations
