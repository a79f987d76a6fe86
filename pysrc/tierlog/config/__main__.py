"""``python -m tierlog.config``: the text of docs/CONFIG.md."""

from __future__ import annotations

import sys

from tierlog.config.markdown import config_markdown

if __name__ == "__main__":
    sys.stdout.write(config_markdown())
