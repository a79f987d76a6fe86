"""``python docs/pictures/data_flow.py``: write the README's picture, ``data_flow.svg``."""

from __future__ import annotations

from html import escape
from pathlib import Path

TARGET = Path(__file__).with_suffix(".svg")
WIDTH, HEIGHT = 960, 476
INK, MUTED, LINE, PAGE, CARD = "#16202c", "#5b6b7d", "#c9d3de", "#f6f8fb", "#ffffff"
GROUP = "#ece8f8"
BROKER, TIER, STORE, READ = "#d97b29", "#2563c9", "#0f8a6b", "#6d4fc4"
SANS = "font-family=\"Inter, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif\""
BOLD, MIDDLE = 'font-weight="700"', 'text-anchor="middle"'
MONO = "font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\""


def text(x: float, y: float, words: str, size: int = 13, colour: str = INK, more: str = "") -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" {more}>'
        f"{escape(words)}</text>"
    )


def box(
    x: float, y: float, width: float, height: float, fill: str, stroke: str, radius: int = 6
) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
        f'fill="{fill}" stroke="{stroke}"/>'
    )


def card(x: float, y: float, width: float, height: float, colour: str, title: str) -> list[str]:
    """A white card with a coloured edge on top and its title."""
    edge = f'fill="{colour}"'
    return [
        box(x, y, width, height, CARD, LINE, radius=10),
        f'<path d="M{x} {y + 12}v-2a10 10 0 0 1 10-10h{width - 20}a10 10 0 0 1 10 10v2z" {edge}/>',
        text(x + 18, y + 38, title, 16, INK, BOLD),
    ]


def arrow(path: str, colour: str, more: str = "") -> str:
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5" {more} '
        f'marker-end="url(#head-{colour[1:]})"/>'
    )


def head(colour: str) -> str:
    return (
        f'<marker id="head-{colour[1:]}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" '
        f'markerHeight="6" orient="auto"><path d="M0 0L10 5L0 10z" fill="{colour}"/></marker>'
    )


def broker() -> list[str]:
    parts = card(24, 56, 252, 206, BROKER, "Kafka broker")
    parts.append(text(42, 114, "unmodified; running or stopped", 12, MUTED))
    parts.append(text(42, 142, "/var/lib/kafka/data/orders-0", 12, INK, MONO))
    rolled = ("…000.log", "…300.log", "…600.log")
    for row, name in enumerate(rolled):
        parts.append(box(42, 152 + 26 * row, 102, 22, "#fbe9d7", BROKER))
        parts.append(text(52, 167 + 26 * row, name, 12, INK, MONO))
    parts.append(text(154, 167, "rolled segments,", 12, MUTED))
    parts.append(text(154, 184, "below the last", 12, MUTED))
    parts.append(text(154, 201, "stable offset", 12, MUTED))
    parts.append(
        f'<rect x="42" y="230" width="102" height="22" rx="6" fill="{CARD}" stroke="{BROKER}" '
        'stroke-dasharray="4 3"/>'
    )
    parts.append(text(52, 245, "…900.log", 12, MUTED, MONO))
    parts.append(text(154, 245, "active segment", 12, MUTED))
    return parts


def tier() -> list[str]:
    parts = card(346, 56, 268, 206, TIER, "tierlog tier")
    steps = (
        ("scan", "checksums, offsets, epochs"),
        ("rebuild", "the indexes from the log"),
        ("copy", "within the copy quota"),
        ("verify", "both objects in the store"),
        ("finish", "commit the metadata"),
    )
    for row, (verb, rest) in enumerate(steps):
        y = 121 + 29 * row
        parts.append(f'<circle cx="374" cy="{y - 4}" r="10" fill="{TIER}"/>')
        parts.append(text(374, y, str(row + 1), 11, CARD, MIDDLE))
        parts.append(text(391, y, verb, 13, INK, BOLD))
        parts.append(text(449, y, rest, 11, MUTED))
    return parts


def store() -> list[str]:
    parts = card(684, 56, 252, 206, STORE, "Your object store")
    parts.append(text(702, 114, "s3  gs  az  hdfs  file", 12, INK, MONO))
    parts.append(box(702, 130, 216, 54, "#dcf3ec", STORE))
    parts.append(text(714, 152, ".log", 13, INK, f"{MONO} {BOLD}"))
    parts.append(text(714, 172, "Kafka's bytes, unchanged", 12, MUTED))
    parts.append(box(702, 194, 216, 54, "#dcf3ec", STORE))
    parts.append(text(714, 216, ".indexes", 13, INK, f"{MONO} {BOLD}"))
    parts.append(text(714, 236, "metadata, checksums, indexes", 12, MUTED))
    return parts


def readers() -> list[str]:
    cards = (
        ("ls, cat", "lines, JSON,", "kcat's formats"),
        ("tierlog.read", "NumPy columns,", "Arrow batches"),
        ("spark_udfs", "tables, streams,", "audits, rebuilds"),
        ("verify", "every object,", "every byte"),
        ("index rebuild", "lost indexes,", "made again"),
    )
    parts = [
        box(24, 318, 912, 142, GROUP, LINE, radius=10),
        text(480, 346, "Read, check and repair without a broker", 16, INK, f"{BOLD} {MIDDLE}"),
    ]
    for column, (name, first, second) in enumerate(cards):
        x = 36 + 179 * column
        parts.append(box(x, 360, 172, 86, CARD, LINE))
        parts.append(f'<rect x="{x}" y="374" width="4" height="58" rx="2" fill="{READ}"/>')
        parts.append(text(x + 18, 388, name, 14, READ, f"{MONO} {BOLD}"))
        parts.append(text(x + 18, 411, first, 13, INK))
        parts.append(text(x + 18, 430, second, 13, INK))
    return parts


def arrows() -> list[str]:
    return [
        arrow("M276 160H342", BROKER),
        text(309, 149, "read only", 11, MUTED, MIDDLE),
        arrow("M614 160H680", TIER),
        text(647, 149, "unchanged", 11, MUTED, MIDDLE),
        arrow("M810 262V314", STORE),
        text(798, 294, "every read checked against its checksums", 12, MUTED, 'text-anchor="end"'),
        arrow("M150 262V314", BROKER, 'stroke-dasharray="6 5"'),
        text(162, 294, "directory and store read as one log", 12, MUTED),
    ]


def picture() -> str:
    """Return the SVG: broker, copy, store and the readers."""
    size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" {SANS}>',
        "<title>Data flow: broker log, tierlog tier, object store, readers</title>",
        f"<defs>{head(BROKER)}{head(TIER)}{head(STORE)}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="14" fill="{PAGE}"/>',
        text(24, 36, "Copy to object storage", 16, INK, BOLD),
        *broker(),
        *tier(),
        *store(),
        *arrows(),
        *readers(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(picture(), encoding="utf-8")
