"""Names that a stranger chose: in a page, a figure, a spreadsheet, a paper; and folders that lead elsewhere."""

from __future__ import annotations

import csv
import io
import json

import pytest

from implicitq.reports.figures import to_svg
from implicitq.reports.report import write_report
from implicitq.reports.tables import DataTable
from implicitq.types import InputError
from sweep_fixtures import ENVIRONMENTS, VERSIONS, write_run

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
