"""The pages that people read first."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


README = (ROOT / "README.md").read_text(encoding="utf-8")
