"""The HTML pages of reports: one file each, without scripts, fonts or external assets."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["legend", "page", "section"]


def page(
    name: str,
    title: str,
    intro: str,
    *,
    tiles: Iterable[tuple[str, str, str]],
    sections: Iterable[str],
    footer: str,
    good: bool,
) -> str:
    """Return a page: a header, tiles of (value, what, detail), sections, a footer.

    ``intro``, ``sections`` and ``footer`` are HTML. The other arguments are text.
    """
    shown = "".join(_tile(*tile) for tile in tiles)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}: {escape(title)}</title><style>{_STYLE}</style><main>"
        f'<header class="{"good" if good else "bad"}"><p class="name">{escape(name)}</p>'
        f"<h1>{escape(title)}</h1>{intro}</header>"
        f'<div class="tiles">{shown}</div>{"".join(sections)}'
        f"<footer>{footer}</footer></main>"
    )


def section(title: str, *parts: str) -> str:
    """Return a section with a heading."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def legend(series: Iterable[tuple[int, str]]) -> str:
    """Return a legend, which shows the name and the colour of each series."""
    items = (f'<li><i class="c{index}"></i>{escape(name)}</li>' for index, name in series)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _tile(value: str, what: str, detail: str) -> str:
    return (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span>'
        f"<small>{escape(detail)}</small></div>"
    )


_STYLE = """
:root{--bg:#fbfaf8;--card:#fff;--ink:#1d1f24;--soft:#6a6f7a;--line:#e4e2dd;--good:#12805c;
--bad:#b3261e;--s0:#8a94a6;--s1:#d1832f;--s2:#4c9a6a;--s3:#3d7cc9;--s4:#7a5ab8;--s5:#b65a7d}
@media(prefers-color-scheme:dark){:root{--bg:#15171b;--card:#1d2026;--ink:#e9eaee;--soft:#9aa0ad;
--line:#31353e;--good:#4cc79a;--bad:#ff8a80;--s0:#8a94a6;--s1:#e6a15a;--s2:#68bd8a;--s3:#6aa3ea;
--s4:#a389dd;--s5:#d98aa8}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:900px;margin:0 auto;padding:40px 20px 60px}
header{border-left:5px solid var(--good);padding:2px 0 2px 20px;margin-bottom:28px}
header.bad{border-color:var(--bad)}header p{margin:0;color:var(--soft);overflow-wrap:anywhere}
.name{font-weight:600;letter-spacing:.04em}h1{font-size:34px;line-height:1.2;margin:2px 0 6px}
.good h1{color:var(--good)}.bad h1{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(240px,1fr));gap:12px}
.tile,section{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:14px 16px;display:flex;flex-direction:column}
.tile b{font-size:25px;line-height:1.2;font-variant-numeric:tabular-nums}
.tile small{color:var(--soft)}
section{padding:18px 20px;margin-top:16px}h2{font-size:18px;margin:0 0 12px}
svg{width:100%;height:auto;display:block;font-size:12px}svg text{fill:var(--ink)}
svg .grid{stroke:var(--line)}svg .tick{fill:var(--soft);text-anchor:middle}
svg .label{text-anchor:end}svg .value{fill:var(--soft)}
svg polyline{fill:none;stroke-width:2}svg .marked{fill:var(--soft)}
svg .mark{stroke:var(--soft);stroke-dasharray:3 3}
.c0{fill:var(--s0);background:var(--s0)}.c1{fill:var(--s1);background:var(--s1)}
.c2{fill:var(--s2);background:var(--s2)}.c3{fill:var(--s3);background:var(--s3)}
.c4{fill:var(--s4);background:var(--s4)}.c5{fill:var(--s5);background:var(--s5)}
.l0{stroke:var(--s0)}.l1{stroke:var(--s1)}.l2{stroke:var(--s2)}.l3{stroke:var(--s3)}
.l4{stroke:var(--s4)}.l5{stroke:var(--s5)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;padding:0;margin:8px 0 0}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{text-align:left;padding:5px 14px 5px 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}.w{white-space:nowrap}.n{text-align:right;white-space:nowrap;
font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}.scroll td{white-space:nowrap}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,"DejaVu Sans Mono",monospace;font-size:12.5px}
pre{margin:0;overflow-x:auto}summary{cursor:pointer;color:var(--soft);margin-bottom:8px}
.note{color:var(--soft);font-size:13.5px;margin:10px 0 0}footer{color:var(--soft);margin-top:22px;
font-size:13px}
"""
