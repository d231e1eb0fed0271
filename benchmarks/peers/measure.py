"""All that docs/performance.md shows: python measure.py PYTHON_OF_PEERS [--parts peers growth]

In the environment of implicitq, on a machine that does nothing else, with two cores or more. Measures the parts one
after the other, keeps them in results.json, and puts the tables of all that is there into the page between its markers.
`--parts` without a name only writes the page.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import run as peers

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent.parent / "docs" / "performance.md"
LARGE, SMALL = "512-512, 2 cores", "256-256, 1 core"
BENCH = (sys.executable, "-m", "implicitq.commands.main", "bench")
COMMANDS = {  # of the parts that print JSON, with the cores they may use
    "bench-512": ("0,1", [*BENCH, "iq", "--repeats", "3", "--json"]),
    "bench-256": ("1", [*BENCH, "iq-auto", "--hidden", "256", "256", "--repeats", "3", "--json"]),
    "growth": ("1", [*BENCH, "iq-auto", "--hidden", "256", "256", "--growth", "--repeats", "3", "--json"]),
    "policies": ("1", [*BENCH, "iq", "--hidden", "256", "256", "--parts", "policies", "--json"]),
}
SEEDS = ("miq --hidden 64 64", "iq-auto --hidden 64 64", "miq --hidden 256 256")
PARTS = ("peers", *COMMANDS, "seeds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", nargs="?", help="bin/python of what make.sh makes")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    chosen = parser.parse_args()
    if "peers" in chosen.parts and chosen.peers is None:
        parser.error("the Python of the peers is missing; see make.sh")
    for part in chosen.parts:
        measure(part, chosen.peers)
    write_page(json.loads(RESULTS.read_text()))


def measure(part: str, python_of_peers: str) -> None:
    if part == "peers":
        subprocess.run([sys.executable, HERE / "run.py", python_of_peers], check=True)
    elif part == "seeds":
        words = [sys.executable, str(HERE.parent / "seeds.py"), "--json", "--algorithm"]
        peers.keep(RESULTS, "seeds", [_told("1", [*words, *setting.split()]) for setting in SEEDS])
    elif part in ("growth", "policies"):
        peers.keep(RESULTS, part, _told(*COMMANDS[part]))
    else:
        known = json.loads(RESULTS.read_text()).get("bench", {}) if RESULTS.exists() else {}
        title = LARGE if part == "bench-512" else SMALL
        peers.keep(RESULTS, "bench", {**known, title: _told(*COMMANDS[part])})


def _told(cores: str, command: list[str]) -> Any:
    return json.loads(subprocess.run(["taskset", "-c", cores, *command], stdout=subprocess.PIPE, check=True).stdout)


def write_page(found: dict[str, Any]) -> None:
    """What was not measured leaves its table as it is."""
    page = PAGE.read_text()
    if "peers" in found:
        tables = [peers.table(title, part) for title, part in found["peers"]["settings"].items()]
        page = _put(page, "peers", "\n\n".join(tables))
    if "bench" in found:
        benches = {title: found["bench"][title] for title in (LARGE, SMALL) if title in found["bench"]}
        page = _put(page, "updates", "\n\n".join(updates_table(title, each) for title, each in benches.items()))
        page = _put(page, "around", around_table(benches))
    if "growth" in found:
        page = _put(page, "growth", growth_table(found["growth"]["growth"]))
    if "policies" in found:
        page = _put(page, "policies", policies_table(found["policies"]["policies"]))
    if "seeds" in found:
        page = _put(page, "seeds", seeds_table(found["seeds"]))
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


def policies_table(rows: list[dict[str, Any]]) -> str:
    """Classes of policies, with the time of an update relative to the first."""
    lines = ["| `--policy` | update, ms | x | GFLOP | sample, us | deterministic, us |", "|---|---|---|---|---|---|"]
    for row in rows:
        update, *acting = (row[name]["median"] for name in ("update_ms", "sample_us", "deterministic_us"))
        cost = f"{update:.2f} | {update / rows[0]['update_ms']['median']:.2f} | {row['gflop']:.3f}"
        lines.append(f"| `{row['policy']}` | {cost} | {acting[0]:.0f} | {acting[1]:.0f} |")
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


def _put(page: str, name: str, text: str) -> str:
    """The page with the text between the markers of that name."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    if begin not in page or end not in page:
        raise SystemExit(f"{PAGE} has no place for {name}: {begin} and {end}")
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)


if __name__ == "__main__":
    main()
