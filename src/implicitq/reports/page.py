"""The report's page: one self-contained HTML file, for wide and narrow, light and dark screens."""

from __future__ import annotations

import html
import urllib.parse
from collections.abc import Iterable, Sequence

STYLE = """
:root { color-scheme: light dark; --ink: #1d1f21; --paper: #fff; --soft: #565c63; --line: #dcdfe3; --box: #f5f6f8;
  --accent: #0072b2; --warn: #d55e00; --good: #00795a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181a; --soft: #a8aeb5; --line: #3a3f45; --box: #202327; --accent: #6cb6e8;
    --warn: #f0803c; --good: #3cc8a0; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.6rem clamp(1rem, 3vw, 3rem) 4rem; max-width: 96rem; color: var(--ink);
  background: var(--paper); font: 16px/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere; }
h1, h2, h3 { line-height: 1.25; text-wrap: balance; }
h1 { font-size: 1.75rem; margin: 0 0 .4rem; } h2 { font-size: 1.35rem; margin: 3.2rem 0 .8rem; padding-top: 1.1rem;
  border-top: 2px solid var(--line); } h3 { font-size: 1.08rem; margin: 2rem 0 .5rem; }
p, ul, .notice { max-width: 52rem; margin: .5rem 0; }
.figures { display: grid; gap: 1.8rem 2rem; margin: 1rem 0; align-items: start;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 25rem), 1fr)); }
.few { grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 40rem)); }
figure { margin: 0; } figure svg, figure img { display: block; width: 100%; height: auto; }
figure.wide { margin: 1.2rem 0 1.8rem; } .wide img { min-width: 44rem; max-width: 72rem; background: #fff; }
figcaption, .soft, .caption { color: var(--soft); font-size: .88rem; } figcaption { margin-top: .3rem; }
.caption { margin: 1.2rem 0 .3rem; max-width: 52rem; }
.table { overflow-x: auto; margin: 0 0 .5rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; overflow-wrap: normal; }
td, th { padding: .34rem 1.1rem .34rem 0; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
tr > :last-child { padding-right: 0; } tbody tr:hover { background: var(--box); }
th { font-weight: 500; } thead th { vertical-align: bottom; white-space: normal; border-bottom-color: var(--soft);
  font-weight: 600; } th:first-child { text-align: left; }
.words td, .words th { text-align: left; vertical-align: top; } .words td:last-child { white-space: normal;
  min-width: 16rem; }
pre { background: var(--box); padding: .8rem 1rem; border-radius: .4rem; white-space: pre-wrap; font-size: .84rem; }
code { font-family: ui-monospace, SFMono-Regular, Menlo, monospace; font-size: .92em; }
.notice { border-left: .3rem solid var(--warn); background: var(--box); padding: .5rem .9rem; }
.missing { border-left: .3rem solid var(--line); padding: .1rem .9rem; color: var(--soft); }
.holds { color: var(--good); font-weight: 600; } .fails { color: var(--warn); font-weight: 600; }
.measured, .not-reached { color: var(--soft); font-weight: 600; } .verdict { font-size: 1.1rem; font-weight: 600; }
details { margin: .5rem 0; } summary { cursor: pointer; } a { color: var(--accent); text-underline-offset: .15em; }
nav { margin: 1rem 0; } nav a { margin-right: 1.2rem; white-space: nowrap; } nav a:last-child { margin: 0; }
@media (max-width: 48rem) { .words, .words tbody, .words tr, .words th, .words td { display: block; }
  .words thead, .words td:empty { display: none; } .words tr { padding: .6rem 0; border-bottom: 1px solid var(--line); }
  .words td, .words th { padding: .1rem 0; border: 0; white-space: normal; min-width: 0; }
  .words td::before { content: attr(data-name) ": "; color: var(--soft); font-weight: 400; } }
@media (max-width: 40rem) { nav a { display: block; white-space: normal; margin: .3rem 0; } h1 { font-size: 1.45rem; } }
@media print { body { max-width: none; } details, figure { break-inside: avoid; } }
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
    links = "\n".join(link_to(anchor, text) for text, anchor in entries)
    return f"<nav>{links}</nav>"


def link(address: str, text: str) -> str:
    return f'<a href="{html.escape(urllib.parse.quote(address))}">{html.escape(text)}</a>'


def link_to(anchor: str, text: str) -> str:
    return f'<a href="#{html.escape(anchor)}">{html.escape(text)}</a>'


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
    few = " few" if len(drawn) < 3 else ""  # which may be larger
    return f'<div class="figures{few}">{each}</div>'


def listing(summary: str, items: Sequence[str], opened: bool = False) -> str:
    body = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f"<details{' open' if opened else ''}><summary>{html.escape(summary)}</summary><ul>{body}</ul></details>"


def warning(title: str, items: Sequence[str]) -> str:
    body = "".join(f"<li>{html.escape(item)}</li>" for item in items)
    return f'<div class="notice"><b>{html.escape(title)}</b><ul>{body}</ul></div>'


def commands(summary: str, lines: Sequence[str], opened: bool = False) -> str:
    body = html.escape("\n".join(lines))
    flag = " open" if opened else ""
    return f"<details{flag}><summary>{html.escape(summary)}</summary><pre><code>{body}</code></pre></details>"
