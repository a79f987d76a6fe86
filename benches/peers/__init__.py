"""The peers of tierlog in the benches. Each peer does the same work in its fastest way."""

from __future__ import annotations
