"""Settings for sidecars in tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tierlog.config import Config, TierConfig


def tier_config(base: Config | None = None, **tier: Any) -> Config:
    """Return `base` with these fields of its section `tier`."""
    return replace(base or Config(), tier=TierConfig(**tier))
