"""The report's page: one self-contained HTML file, for wide and narrow, light and dark screens."""

from __future__ import annotations

import html
import urllib.parse
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; --ink: #1d1f21; --paper: #fff; --soft: #5b6066; --line: #d9dce0; --box: #f4f5f7; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181a; --soft: #a2a8ae; --line: #3a3f45; --box: #202327; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 74rem; font: 16px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { margin-top: 2.5rem; border-top: 1px solid var(--line);
  padding-top: 1rem; font-size: 1.3rem; } h3 { font-size: 1.05rem; margin-bottom: .4rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; } figure svg { display: block; width: 100%; max-width: 32rem; height: auto; }
figcaption, .soft, .caption { color: var(--soft); font-size: .88rem; }
.table { overflow-x: auto; margin: .2rem 0 .4rem; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
.caption { margin: 1rem 0 0; }
td, th { padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th[scope=row], th:first-child { text-align: left; } thead th { vertical-align: bottom; white-space: normal; }
pre { background: var(--box); padding: .7rem; white-space: pre-wrap; font-size: .82rem; }
code { font-family: ui-monospace, monospace; }
.notice { border-left: .3rem solid #d55e00; background: var(--box); padding: .5rem .8rem; margin: .8rem 0; }
details { margin: .6rem 0; } summary { cursor: pointer; } nav a { margin-right: 1rem; } a { color: inherit; }
"""


def page(title: str, facts: str, parts: Iterable[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{html.escape(title)}</title><style>{STYLE}</style></head><body>\n'
        f"<h1>{html.escape(title)}</h1>\n<p>{html.escape(facts)}</p>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def heading(text: str, anchor: str) -> str:
    return f'<h2 id="{html.escape(anchor)}">{html.escape(text)}</h2>'


def contents(entries: Sequence[tuple[str, str]]) -> str:
    links = "".join(f'<a href="#{html.escape(anchor)}">{html.escape(text)}</a>' for text, anchor in entries)
    return f"<nav>{links}</nav>"


def link(address: str, text: str) -> str:
    return f'<a href="{html.escape(urllib.parse.quote(address))}">{html.escape(text)}</a>'


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def figures(drawn: Sequence[tuple[str, str, str]]) -> str:
    """(SVG, caption, name of its files) of each."""
    each = "".join(
        f"<figure>{svg}<figcaption>{html.escape(caption)} "
        f"{link(f'figures/{name}.pdf', 'PDF')} {link(f'figures/{name}.png', 'PNG')}</figcaption></figure>"
        for svg, caption, name in drawn
    )
    return f'<div class="figures">{each}</div>'


def listing(summary: str, items: Sequence[str], opened: bool = False) -> str:
    body = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<details{' open' if opened else ''}><summary>{html.escape(summary)}</summary><ul>{body}</ul></details>"


def commands(summary: str, lines: Sequence[str], opened: bool = False) -> str:
    body = html.escape("\n".join(lines))
    flag = " open" if opened else ""
    return f"<details{flag}><summary>{html.escape(summary)}</summary><pre><code>{body}</code></pre></details>"
