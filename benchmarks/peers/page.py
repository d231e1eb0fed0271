"""Puts measured tables into docs/performance.md, between its markers: python page.py

From what lies beside this file: results.json of run.py, and of `implicitq bench --json` and `--growth --json`, under
the names in BENCHES and GROWTH, and lines of `seeds.py --json` under that in SEEDS. What is not there leaves its table
as it is.
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

import run as peers

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "performance.md"
BENCHES = {"bench-512-2-cores.json": "512-512, 2 cores", "bench-256-1-core.json": "256-256, 1 core"}
GROWTH = "growth-256-1-core.json"
SEEDS = "seeds-1-core.jsonl"


def main() -> None:
    found = {name: _read(name) for name in ("results.json", *BENCHES, GROWTH)}
    page = PAGE.read_text()
    if found["results.json"]:
        tables = [peers.table(title, part) for title, part in found["results.json"]["settings"].items()]
        page = _put(page, "peers", "\n\n".join(tables))
    benches = {title: found[name] for name, title in BENCHES.items() if found[name]}
    if benches:
        page = _put(page, "updates", "\n\n".join(updates_table(title, each) for title, each in benches.items()))
        page = _put(page, "around", around_table(benches))
    if found[GROWTH]:
        page = _put(page, "growth", growth_table(found[GROWTH]["growth"]))
    if (HERE / SEEDS).exists():
        lines = (HERE / SEEDS).read_text().splitlines()
        page = _put(page, "seeds", seeds_table([json.loads(line) for line in lines]))
    PAGE.write_text(page)


def updates_table(title: str, found: dict[str, Any]) -> str:
    rates = [row["sgemm_gflop_per_second"] for row in found["updates"]]
    head = f"{title}; sgemm {min(rates):.0f} to {max(rates):.0f} GFLOP/s"
    lines = [f"| {head} | sizes | batch | ms | GFLOP | of sgemm | Adam |", "|---|---|---|---|---|---|---|"]
    for row in found["updates"]:
        sizes = "-".join(map(str, row["hidden"]))
        cost = f"{row['update_ms']['median']:.2f} | {row['gflop']:.3f} | {row['fraction_of_sgemm']:.0%}"
        cost += f" | {row['adam_ms']['median'] / row['update_ms']['median']:.0%}"
        lines.append(f"| `{row['algorithm']}`, {row['env']} | {sizes} | {row['batch_size']} | {cost} |")
    return "\n".join(lines)


def around_table(benches: dict[str, dict[str, Any]]) -> str:
    """What is not an update, one column for each setting."""
    columns = [_around(found) for found in benches.values()]
    lines = [f"| | {' | '.join(benches)} |", "|---" * (len(benches) + 1) + "|"]
    lines += [f"| {what} | {' | '.join(column.get(what, '') for column in columns)} |" for what in columns[0]]
    return "\n".join(lines)


def _around(found: dict[str, Any]) -> dict[str, str]:
    loop, start, saved = found["loop"], found["start"], found["checkpoint"]
    told = {
        "measured": f"`{loop['algorithm']}` on {loop['env']}",
        "steps per second": f"{loop['steps_per_second']:.0f}",
        "time outside the update": f"{loop['outside_update']:.1%}",
    }
    told |= {f"share of {part}": f"{share:.1%}" for part, share in loop["shares"].items()}
    observations = found["predict"]["observations"]
    told |= {f"`predict`, {count} observation(s)": f"{each['median']:.0f} us" for count, each in observations.items()}
    replay = found["replay"]
    told["replay, bytes per transition"] = f"{replay['bytes_per_transition']:.0f}"
    told["replay, inserts per second"] = f"{replay['inserts_per_second']:,.0f}"
    told[f"replay, batches of {replay['batch_size']} per second"] = f"{replay['batches_per_second']:,.0f}"
    told[f"checkpoint every {saved['every']:,} steps"] = f"{saved['seconds']['median']:.2f} s, {saved['share']:.2%}"
    for name, words in (("fresh", "nothing compiled yet"), ("cached", "warm cache")):
        each = start[name]
        told[f"command to first step, {words}"] = f"{each['first_step']:.1f} s"
        told[f"command to first update, {words}"] = f"{each['first_update']:.1f} s"
        told[f"of which compiling or loading, {words}"] = f"{each['compiling']:.1f} s"
    return told


def growth_table(rows: list[dict[str, Any]]) -> str:
    """One line for each thing that is varied and measured."""
    lines = ["| varied | measured | cost at each value |", "|---|---|---|"]
    series: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        cost = f"{row['value']:,}: {row['cost']:.3g}"
        if row["gflop"] is not None:
            cost += f" ({row['gflop']:.2g} GFLOP)"
        series.setdefault((row["what"], row["measure"]), []).append(cost)
    lines += [f"| `{what}` | {measured} | {'; '.join(costs)} |" for (what, measured), costs in series.items()]
    return "\n".join(lines)


def seeds_table(rows: list[dict[str, Any]]) -> str:
    """Four seeds one after the other and in step."""
    names = "one after the other", "in step"
    lines = [
        f"| | {names[0]} | {names[1]} | faster | start, {names[0]} | start, {names[1]} |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        apart, together = (row[name]["step_ms"] for name in names)
        steps = [f"{statistics.median(times):.1f} ms" for times in (apart, together)]
        starts = [f"{row[name]['start']:.0f} s" for name in names]
        what = f"`{row['algorithm']}`, {'-'.join(map(str, row['hidden']))}, batch {row['batch_size']}"
        lines.append(f"| {' | '.join([what, *steps, peers.ratio(apart, together), *starts])} |")
    return "\n".join(lines)


def _read(name: str) -> Any:
    path = HERE / name
    return json.loads(path.read_text()) if path.exists() else None


def _put(page: str, name: str, text: str) -> str:
    """The page with the text between the markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if begin not in page or end not in page:
        raise SystemExit(f"{PAGE} has no place for {name}: {begin} and {end}")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
