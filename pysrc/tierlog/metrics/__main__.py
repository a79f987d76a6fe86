"""``python -m tierlog.metrics``: the text of docs/METRICS.md."""

from __future__ import annotations

import sys

from tierlog.metrics.markdown import metrics_markdown

if __name__ == "__main__":
    sys.stdout.write(metrics_markdown())
