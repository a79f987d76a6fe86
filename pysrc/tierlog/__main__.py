"""``python -m tierlog``."""

from __future__ import annotations

import sys

from tierlog.cli import main

if __name__ == "__main__":
    sys.exit(main())
