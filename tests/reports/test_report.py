"""The report: what is on the page and in the files, what is refused, what is named; and the page in a real browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from implicitq.commands import main as cli
from implicitq.configs import resolve, to_json
from implicitq.reports.figures import to_svg
from implicitq.reports.reading import _by_versions, gather
from implicitq.reports.report import Written, write_report
from implicitq.reports.tables import DataTable
from implicitq.runs.layout import FoundRun
from implicitq.sweeps.collecting import collect
from implicitq.sweeps.studies import Study, Variant, expand
from implicitq.sweeps.suites import Suite
from implicitq.types import InputError
from run_fixtures import ENVIRONMENTS, VERSIONS, write_run, write_sweep

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=5000",
]
# A window has a least width, a frame has none.
FRAME = """<!doctype html><body><script>
addEventListener("message", message => document.body.dataset.found = message.data)
</script><iframe src="probed.html" style="border: 0; width: {width}px; height: 900px"></iframe></body>"""
PROBE = """
<script>addEventListener("load", () => {
  const boxes = [...document.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect());
  const texts = [...document.querySelectorAll("figure svg text")].map(text => text.getBoundingClientRect().height);
  const found = {
    figures: boxes.length,
    visible: boxes.filter(box => box.width > 200 && box.height > 80).length,
    within: boxes.every(box => box.right <= innerWidth + 1),
    wide: document.documentElement.scrollWidth > innerWidth + 1,
    width: innerWidth,
    least: Math.min(...texts),
    ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor,
    axis: getComputedStyle(document.querySelector("figure svg text")).fill,
  };
  parent.postMessage(JSON.stringify(found), "*");
})</script>
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Written:
    """The report of a finished sweep, to look at."""
    return write_report(write_sweep(tmp_path_factory.mktemp("drawn") / "sweep"))


def test_a_report_has_figures_tables_and_a_self_contained_page(drawn):
    assert (drawn.runs, drawn.broken, drawn.missing) == (18, 0, 0)
    text = drawn.page.read_text()
    names = [
        "aggregates",
        "improvement",
        "iqm-along-training",
        "mean-along-training",
        "median-along-training",
        "profile",
        "Pendulum-v1",
        "InvertedPendulum-v5",
    ]
    assert text.count("<svg") == len(names)
    for name in names:
        for form in ("pdf", "png"):
            assert (drawn.page.parent / f"figures/small-boxes-{name}.{form}").stat().st_size > 1_000
    for name in ("aggregates", "improvement", "returns"):
        assert "tabular" in (drawn.page.parent / f"tables/small-boxes-{name}.tex").read_text()
    assert not re.search(r'(src|href)="(https?:)?//', text)
    assert "<script" not in text
    for words in ("implicitq sweep --study small", "18 of 18 planned", "gymnasium", "95%", "implicitq train"):
        assert words in text
    assert "processor time" not in text  # these runs have no clocks
    HTMLParser().feed(text)
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_tables_hold_the_numbers(drawn):
    page = drawn.page
    with open(page.parent / "tables/small-boxes-aggregates.csv", newline="") as file:
        rows = {(row["line"], row["aggregate"]): row for row in csv.DictReader(file)}
    assert float(rows["sac", "mean"]["score"]) == pytest.approx(1.0)
    assert float(rows["miq", "IQM"]["score"]) == pytest.approx(0.75, abs=0.03)
    assert float(rows["iq", "IQM"]["low"]) <= float(rows["iq", "IQM"]["score"]) <= float(rows["iq", "IQM"]["high"])
    with open(page.parent / "tables/small-boxes-returns.csv", newline="") as file:
        returns = list(csv.DictReader(file))
    assert {row["finished_seeds"] for row in returns} == {"3"}


def test_runs_with_clocks_are_compared_at_equal_processor_time_too(finished_sweep, small_plan):
    for run in small_plan.runs:
        shutil.rmtree(finished_sweep / run.folder)
        write_run(finished_sweep, run, 200.0, rate=2.0 if run.algorithm == "sac" else 1.0)
    page = write_report(finished_sweep).page
    for task in ("Pendulum-v1", "InvertedPendulum-v5"):
        for form in ("pdf", "png"):
            assert (page.parent / f"figures/small-boxes-{task}-time.{form}").stat().st_size > 1_000
    with open(page.parent / "tables/small-boxes-cost.csv", newline="") as file:
        rows = {(row["task"], row["line"]): row for row in csv.DictReader(file)}
    assert float(rows["Pendulum-v1", "miq"]["cpu_seconds"]) == 10_000
    mean = rows["mean of 2 tasks", "miq"]  # with the same curve in half of the time: twice the score
    assert float(mean["score"]) == pytest.approx(1.0, abs=0.03)
    assert float(mean["score_at_equal_time"]) == pytest.approx(2.0, abs=0.06)
    shown = (page.parent / "tables/small-boxes-cost.md").read_text().splitlines()
    assert shown[0].count("|") == shown[1].count("|") == shown[-1].count("|") == 9
    assert shown[-1].startswith("| mean of 2 tasks | sac |")
    assert shown[-1].endswith("| 100 % | 100 % |")


def test_the_same_folder_gives_the_same_page(finished_sweep, drawn):
    assert write_report(finished_sweep).page.read_bytes() == drawn.page.read_bytes()


@pytest.mark.usefixtures("undrawn")
def test_missing_unfinished_and_broken_runs_are_named_and_counted(finished_sweep, small_plan):
    gone, short, broken, begun = (small_plan.runs[n].folder for n in (0, 1, 3, 4))
    shutil.rmtree(finished_sweep / gone)
    shutil.rmtree(finished_sweep / short)
    write_run(finished_sweep, small_plan.runs[1], 100.0, until=4_000)
    (finished_sweep / broken / "config.json").write_text("{")
    (finished_sweep / begun / "evaluations.csv").unlink()
    done = write_report(finished_sweep)
    assert (done.runs, done.broken, done.missing) == (15, 2, 4)
    text = done.page.read_text()
    for words in (
        f"{gone}: not there",
        f"{short}: at step 4,000 of 10,000",
        f"{broken}: config.json cannot be read",
        f"{begun}: it has no evaluations.csv",
        "2 broken or half-written folders",
    ):
        assert words in text


@pytest.mark.usefixtures("undrawn")
def test_mixed_versions_are_refused_until_one_is_chosen(finished_sweep, small_plan):
    other = finished_sweep / small_plan.runs[0].folder
    (other / "versions.json").write_text(json.dumps({**VERSIONS, "jax": "0.1.0"}))
    with pytest.raises(InputError, match=r"mixes runs of several versions.* with jax 0\.1\.0"):
        write_report(finished_sweep)
    which = next(n for n in (1, 2) if len(gather(finished_sweep, n).runs) == 17)
    done = write_report(finished_sweep, version_set=which)
    assert done.runs == 17
    assert "only set" in done.page.read_text()
    assert f"{small_plan.runs[0].folder}: made with other versions" in done.page.read_text()
    with pytest.raises(InputError, match="version_set must be from 1 to 2"):
        write_report(finished_sweep, version_set=3)


def test_runs_of_other_versions_are_looked_for_in_their_own_table(tmp_path, small_plan):
    for table, versions in (("one", VERSIONS), ("ones", {**VERSIONS, "jax": "0.1.0"})):
        for run in small_plan.runs[:2]:
            write_run(tmp_path / "runs" / table, run, 10.0, versions=versions)
        collect(tmp_path / "runs" / table, tmp_path / "tables" / table)
    for which in (1, 2):  # the name of one folder is the beginning of the other's
        assert len(gather(tmp_path / "tables", which).runs) == 2


def test_a_package_that_the_task_does_not_use_is_not_another_version(finished_sweep, small_plan):
    run = next(run for run in small_plan.runs if run.env == "Pendulum-v1")
    (finished_sweep / run.folder / "versions.json").write_text(json.dumps({**VERSIONS, "mujoco": "3.0.0"}))
    assert len(gather(finished_sweep).runs) == len(small_plan.runs)


@pytest.mark.parametrize("found", [["1.4.2"], ["1.4.1", "1.4.2"]])
def test_a_package_that_only_some_tasks_come_from_sets_its_own_runs_apart(found):
    def run(env: str, **more: str) -> FoundRun:
        name, nothing = " ".join((env, *more.values())), np.zeros(0)
        return FoundRun(Path(), name, resolve("iq", env), {**VERSIONS, **more}, nothing, nothing, nothing)

    adroit = [run("implicitq/AdroitHandDoor-v1", **{"gymnasium-robotics": version}) for version in found]
    control = run("dm_control/hopper-hop-v0", shimmy="2.0.1")
    groups = list(_by_versions([run("Hopper-v5"), *adroit, control]).values())
    for group, own in zip(groups, adroit, strict=True):
        assert {each.name for each in group} == {"Hopper-v5", control.name, own.name}


@pytest.mark.usefixtures("undrawn")
def test_another_processor_is_not_another_version(finished_sweep, small_plan):
    other = finished_sweep / small_plan.runs[0].folder
    (other / "versions.json").write_text(json.dumps({**VERSIONS, "processor": "another"}))
    assert "Machines: 2" in write_report(finished_sweep).page.read_text()


@pytest.mark.usefixtures("undrawn")
def test_random_scores_of_other_versions_do_not_count(finished_sweep):
    path = finished_sweep / "random-scores.json"
    data = json.loads(path.read_text())
    data["Pendulum-v1"]["versions"]["gymnasium"] = "0.1"
    path.write_text(json.dumps(data))
    text = write_report(finished_sweep).page.read_text()
    assert "measured with gymnasium 0.1, the runs with 1.4.0: measure it again" in text
    assert "Normalised scores over 1 task<" in text


@pytest.mark.usefixtures("undrawn")
def test_without_sac_returns_are_shown_and_it_says_what_to_run(tmp_path):
    plan = expand(Study("one", "", (Variant("iq"),)), Suite("s", ("Pendulum-v1",)), 2, 5_000)
    for run in plan.runs:
        write_run(tmp_path, run, 10.0)
    entry = {"mean": 0.0, "std": 1.0, "episodes": 1, "versions": {"gymnasium": "1.4.0", "mujoco": "4.0.0"}}
    (tmp_path / "random-scores.json").write_text(json.dumps({"Pendulum-v1": entry}))
    text = write_report(tmp_path).page.read_text()
    assert "run: implicitq train sac --env Pendulum-v1 --steps 5000" in text
    assert text.count("<svg") == 1
    assert "All runs" in text


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_the_settings_of_a_preset_file_is_reported_with_a_command_that_makes_it_again(tmp_path):
    preset = tmp_path / "mine.toml"
    preset.write_text('algorithm = "sac"\n[settings]\nlearning_rate = 0.001\nsteps = 5000\n')
    (run,) = expand(Study("one", "", (Variant("sac"),)), Suite("s", ("Pendulum-v1",)), 1, 5_000).runs
    folder = write_run(tmp_path / "runs", run, 10.0)
    config = resolve("sac", "Pendulum-v1", preset)
    (folder / "config.json").write_text(json.dumps({"layout": 1, **to_json(config)}))
    text = write_report(tmp_path / "runs").page.read_text()
    assert "train sac --env Pendulum-v1 --preset none" in text
    assert "--learning-rate 0.001" in text


def test_runs_without_a_plan_are_told_apart_by_their_settings(tmp_path):
    variants = (Variant("iq"), Variant("iq", {"bins": 3}))
    plan = expand(Study("two", "", variants), Suite("s", ("Pendulum-v1",)), 1, 5_000)
    for run in plan.runs:
        write_run(tmp_path, run, 10.0)
    (section,) = gather(tmp_path).sections
    assert list(section.lines) == ["iq", "iq bins=3"]


@pytest.mark.usefixtures("undrawn")
def test_committed_files_alone_make_a_report(finished_sweep):
    for path in finished_sweep.rglob("versions.json"):
        path.unlink()
    assert "are not recorded" in write_report(finished_sweep).page.read_text()


@pytest.mark.parametrize(("make", "message"), [(False, "is not a folder"), (True, "holds no run with an evaluation")])
def test_a_folder_without_runs_is_refused(tmp_path, capsys, make, message):
    folder = tmp_path / "none"
    if make:
        folder.mkdir()
    assert cli.run(["report", str(folder)]) == 2
    assert message in capsys.readouterr().err


def test_scores_and_reports_need_no_jax(finished_sweep):
    code = f"""
import sys
from implicitq.commands import main as cli
assert cli.run(["report", {str(finished_sweep)!r}]) == 0
assert cli.run(["collect", {str(finished_sweep)!r}, {str(finished_sweep)!r}]) == 0
assert cli.run(["sweep", "--out", "unused", "--study", "nonsense"]) == 2
heavy = {{"jax", "jaxlib", "equinox", "optax", "ray"}} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_report_grows_with_its_evaluations_and_stays_fast(tmp_path):
    """A tenth of the runs, a twentieth of the evaluations of the full study."""
    suite = Suite("s", ("Pendulum-v1", "InvertedPendulum-v5"), {"eval_every": 1_000})
    plan = expand(Study("many", "", tuple(map(Variant, ("iq", "miq", "sac")))), suite, 13, 100_000)
    assert len(plan.runs) == 78
    for run in plan.runs:
        write_run(tmp_path, run, 100.0)
    start = time.process_time()
    write_report(tmp_path)
    assert time.process_time() - start < 20


def look(page: Path, profile: Path, width: int, *more: str) -> tuple[dict, str]:
    """What the browser made of the page, and what it complained of."""
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    frame = page.with_name("frame.html")
    frame.write_text(FRAME.format(width=width))
    words = [str(CHROMIUM), *FLAGS, *more, f"--user-data-dir={profile}", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([*words, frame.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'data-found="([^"]+)"', done.stdout)
    assert found is not None
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found[1].replace("&quot;", '"')), "\n".join(complaints)


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_figure_is_visible_and_legible_in_a_browser(drawn, tmp_path, width, dark):
    page = Path(shutil.copytree(drawn.page.parent, tmp_path / "report")) / "index.html"
    found, complaints = look(page, tmp_path / "profile", width, *(["--force-dark-mode"] if dark else []))
    assert not complaints
    assert found["figures"] == found["visible"] == page.read_text().count("<svg") > 0
    assert found["within"]
    assert not found["wide"]
    assert found["width"] == width
    assert found["least"] >= 8  # pixels
    ink, paper = brightness(found["ink"]), brightness(found["paper"])
    assert (ink > paper + 100) if dark else (paper > ink + 100)
    assert abs(brightness(found["axis"]) - ink) < 1  # figures take the page's colour


# Names that a stranger chose: in a page, a figure, a spreadsheet, a paper; and folders that lead elsewhere.


ODD = 'a$\\frac{$ "><script>alert(1)</script>|`x`](y)'


def foreign_run(root, algorithm, env="Pendulum-v1"):
    root.mkdir(parents=True)
    config = {"algorithm": algorithm, "env": env, "steps": 200, "seed": 0, "eval_every": 100}
    (root / "config.json").write_text(json.dumps(config))
    (root / "versions.json").write_text(json.dumps(VERSIONS))
    (root / "evaluations.csv").write_text("step,mean_return,std_return\n100,1.0,0.0\n200,2.0,0.0\n")


def test_odd_names_are_drawn_and_shown_as_they_are(tmp_path):
    foreign_run(tmp_path / "2024-runs/x", ODD)  # in a folder whose name begins with a number
    foreign_run(tmp_path / "y", "other", "A b-v0")
    foreign_run(tmp_path / "z", "other", "A-b-v0")  # the same name of a file
    done = write_report(tmp_path)
    assert (done.runs, done.broken) == (3, 0)
    text = done.page.read_text()
    assert "<script>" not in text
    assert "alert(1)&lt;/script&gt;" in text
    assert len(list((done.page.parent / "figures").glob("*A-b-v0*.png"))) == 2


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["=cmd()", "@x", "+1", "-1", "\t=1", "a\nb", "", "_hidden", "x" * 600, 3])
def test_names_that_no_table_can_hold_make_a_folder_broken(tmp_path, name):
    foreign_run(tmp_path / "good", "other")
    foreign_run(tmp_path / "bad", name)
    done = write_report(tmp_path)
    assert (done.runs, done.broken) == (1, 1)
    assert "algorithm must be a printable name" in done.page.read_text()


def test_tables_escape_what_their_formats_give_a_meaning():
    texts = ("=1+1", "@x", "a|b", "c\\d{e}$f$^g~h", "[x](y)<b>")
    table = DataTable("t", "50 % & more", ("x",), tuple((text,) for text in texts), ("x",), tuple((t,) for t in texts))
    assert [row[0] for row in csv.reader(io.StringIO(table.to_csv()))][1:3] == ["'=1+1", "'@x"]
    assert r"c\textbackslash{}d\{e\}\$f\$\textasciicircum{}g\textasciitilde{}h \\" in table.to_latex()
    assert r"| a\|b |" in table.to_markdown()
    assert r"| [x\](y)\<b> |" in table.to_markdown()


def test_numbers_below_zero_are_no_formulas():
    assert DataTable("t", "", ("x",), ((-1.5,),), ("x",), (("-1.5",),)).to_csv() == "x\n-1.5\n"


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", ["report", "report/figures", "report/tables", "report/index.html"])
def test_a_report_is_never_written_through_a_link(tmp_path, name):
    root, outside = tmp_path / "runs", tmp_path / "outside"
    foreign_run(root / "x", "other")
    outside.mkdir()
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(outside)
    with pytest.raises(InputError, match=f"{name} is a link, which is not followed"):
        write_report(root)
    assert not list(outside.iterdir())


def test_a_grid_that_does_not_fit_into_memory_is_refused(tmp_path):
    foreign_run(tmp_path / "x", "other")
    config = json.loads((tmp_path / "x/config.json").read_text())
    (tmp_path / "x/config.json").write_text(json.dumps({**config, "steps": 10**14, "eval_every": 1}))
    with pytest.raises(InputError, match="are too many to compare"):
        write_report(tmp_path)


def test_returns_at_the_bounds_of_what_is_read_are_drawn(tmp_path, small_plan):
    for run in small_plan.runs:
        if run.env == "Pendulum-v1":
            write_run(tmp_path, run, {"iq": 9e49, "miq": -9e49, "sac": 0.0}[run.algorithm])
    entry = {"mean": -1e-50, "std": 1e50, "episodes": 100, "seed": 0, "versions": ENVIRONMENTS}
    (tmp_path / "random-scores.json").write_text(json.dumps({"Pendulum-v1": entry}))
    assert write_report(tmp_path).runs == 9


def test_ids_in_figures_take_names_that_begin_with_a_number():
    class Drawn:
        def savefig(self, buffer, **_):
            buffer.write('<svg id="a"><use href="#a"/></svg>')

    assert to_svg(Drawn(), "1-x", "") == '<svg role="img" aria-label="" id="1-x-a"><use href="#1-x-a"/></svg>'
