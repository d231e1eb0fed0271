"""Values that no rewards can explain are told, while they are still finite."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import implicitq
import toys
from implicitq import hindsight
from implicitq.commands.main import run
from implicitq.runs.metrics import first_implausible, read_metrics


def test_what_rewards_and_entropy_can_explain():
    assert hindsight.plausible_value(2.0, 0.0, 6, 0.99) == pytest.approx(200)
    assert hindsight.plausible_value(2.0, 0.1, 6, 0.9) == pytest.approx((2 + 3 * 0.1 * 6) / 0.1)
    assert hindsight.is_implausible(np.array([-700.0, 600, np.nan]), 200.0).tolist() == [True, False, False]
    assert not hindsight.is_implausible(5.0, 0.0)  # an untrained network where there is no reward yet


def test_a_run_whose_values_leave_every_range_warns_once_and_its_folder_tells(small, tmp_path):
    settings = {**small, "learning_rate": 30.0, "discount": 0.9, "log_every": 10}
    agent = implicitq.make("iq", toys.Toy, **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.learn(out=tmp_path / "run")
    agent.close()
    told = [str(one.message) for one in caught if "rewards so far explain at most" in str(one.message)]
    assert len(told) == 1
    assert "try a lower learning_rate" in told[0]
    table = read_metrics(tmp_path / "run")
    assert np.isfinite(table["value"][-1])
    assert "values diverged: " in (first_implausible(tmp_path / "run") or "")


def test_the_bound_goes_on_where_a_run_goes_on(small, tmp_path):
    whole = implicitq.make("iq", toys.Toy, **small).learn(out=tmp_path / "whole")
    stopped = implicitq.make("iq", toys.Toy, **small)
    stopped.learn(out=tmp_path / "stopped", listeners=[lambda event: event.step < 70])
    stopped.close()
    implicitq.resume(tmp_path / "stopped", toys.Toy).learn().close()
    whole.close()
    columns = [read_metrics(tmp_path / name)["plausible_value"] for name in ("whole", "stopped")]
    np.testing.assert_array_equal(*columns)
    assert columns[0][-1] > 0
    assert first_implausible(tmp_path / "whole") is None


@pytest.mark.filterwarnings("always:the mean value is")
def test_the_command_says_it_at_the_end(small_flags, tmp_path, capsys):
    flags = [*small_flags, "--learning-rate", "30", "--discount", "0.9"]
    assert run(["train", "iq", "--env", "toys:Toy-v0", *flags, "--out", str(tmp_path / "run")]) == 0
    output, errors = capsys.readouterr()
    assert "values diverged: " in " ".join(output.split())
    assert "explain at most" in " ".join(errors.split())
