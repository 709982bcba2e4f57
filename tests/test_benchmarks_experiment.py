"""The field's benchmarks: who wins at equal updates and at equal time, and the page about it."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from natgfn.envs import Hypergrid
from natgfn.optim import Adam, SampleSpace
from natgfn.policies import Uniform
from natgfn.sampling import UniformMixture
from natgfn.training import Setup, decide
from paper.experiments import benchmarks, reproduce
from paper.experiments.benchmarks import SCALES, Benchmarks
from paper.experiments.benchmarks_page import (
    ADAM,
    DEFAULT,
    METHODS,
    NATURAL,
    PEER,
    at_equal_time,
    comparisons,
    page,
    verdict,
)
from paper.experiments.study import SWEEP_SEED


@pytest.mark.parametrize(
    ("ours", "theirs", "higher", "expected"),
    [
        ([0.1, 0.2, 0.1], [0.5, 0.6, 0.5], False, "won"),
        ([0.1, 0.2, 0.1], [0.5, 0.6, 0.5], True, "lost"),
        ([0.5, 0.6, 0.5], [0.1, 0.2, 0.1], False, "lost"),
        ([0.5, 0.6, 0.5], [0.1, 0.2, 0.1], True, "won"),
        ([0.1, 0.9, 0.2], [0.5, 0.6, 0.5], False, "level"),
        ([0.5], [0.5], False, "level"),
        ([0.4], [0.5], False, "won"),
        ([np.nan, 0.1], [0.5, 0.6], False, "lost"),
        ([0.9, 0.8], [np.inf, 0.1], False, "won"),
        ([np.nan, 0.1], [np.nan, 0.1], False, "level"),
    ],
)
def test_a_comparison_is_won_by_more_than_its_noise(ours, theirs, higher, expected):
    assert verdict(ours, theirs, higher=higher) == expected


def test_two_standard_errors_decide():
    """Each side has the deviation 1 and two seeds: the error of the difference is 1."""
    one = [-(0.5**0.5), 0.5**0.5]
    assert verdict(one, [x + 1.99 for x in one], higher=False) == "level"
    assert verdict(one, [x + 2.01 for x in one], higher=False) == "won"


def test_equal_time_ends_when_the_faster_is_done():
    steps = [0, 10, 20, 30, 40]
    assert at_equal_time([steps, steps], [1.0, 1.0]) == [4, 4]
    assert at_equal_time([steps, steps], [2.0, 1.0]) == [2, 4]  # 40 units: 20 updates of the slow
    assert at_equal_time([steps, steps], [1.0, 3.9]) == [4, 1]


def record(task, method, seed, kl):
    return {"task": task, "method": method, "seed": seed, "steps": [0, 50, 100], "kl": kl,
            "rejected": 0}  # fmt: skip


def test_the_page_counts_every_comparison():
    values = {PEER: 0.4, ADAM: 0.1, DEFAULT: 0.2, NATURAL: 0.05}
    runs = {
        f"grid, {method} seed={seed}": record("grid", method, seed, [1.0, 3 * kl, kl + 1e-4 * seed])
        for method, kl in values.items()
        for seed in (0, 1)
    }
    runs["sweep"] = record("grid", f"{ADAM} (rate 1)", SWEEP_SEED, [1.0, 1.0, 1e-9])
    task = {"metric": "kl", "updates": 100, "batch": 16, "best": {ADAM: "rate 1", NATURAL: None}}
    results = {
        "about": "About.", "command": "natgfn reproduce benchmarks", "versions": {"jax": "0"},
        "tasks": {"grid": task | {"left_out": False}, "QM9-small": task | {"left_out": True}},
        "runs": runs,
        "milliseconds": {"grid": {PEER: 1.0, ADAM: 1.0, DEFAULT: 2.0, NATURAL: 2.0}},
    }  # fmt: skip
    found = {(c["ours"], c["against"], c["at"]): c["verdict"] for c in comparisons(results)}
    assert found == {
        (DEFAULT, PEER, "updates"): "won",
        (DEFAULT, ADAM, "updates"): "lost",
        (NATURAL, PEER, "updates"): "won",
        (NATURAL, ADAM, "updates"): "won",
        (DEFAULT, PEER, "time"): "lost",  # 0.6 after half of its updates
        (DEFAULT, ADAM, "time"): "lost",
        (NATURAL, PEER, "time"): "won",
        (NATURAL, ADAM, "time"): "lost",
    }
    text = page(results)
    assert "4 won, 0 level, 4 lost" in text
    assert "table was not given: QM9-small" in text
    assert "1e-09" in text  # the sweep is shown too
    assert all(method in text for method in METHODS)


def test_every_method_trains_as_the_page_says():
    scale = SCALES["paper"]
    assert len(scale.tasks) == 8
    study = Benchmarks(scale, 3, Path(), (), {})
    assert {method: len(points) for method, points in study.sweeps().items()} == {
        ADAM: scale.trials, NATURAL: scale.trials,
    }  # fmt: skip
    grid = scale.tasks["hypergrid 20^4, easy"]
    default = study.how(grid, DEFAULT, None)
    alone, _ = decide(Setup(Hypergrid(side=20, dims=4), max_states=1_000))  # as a user would run it
    assert isinstance(alone.proposal, UniformMixture)
    for part in ("rule", "policy", "source", "proposal"):
        assert default[part] == getattr(alone, part)
    assert study.how(scale.tasks["TFBind8"], DEFAULT, None) == {
        "batch": 16, "enumerate": True, "rule": None,
    }  # fmt: skip
    peer, ours = study.how(grid, PEER, grid.peer), study.how(grid, NATURAL, SampleSpace.network())
    assert peer["rule"] == Adam(1e-3, backward_rate=1e-3, log_z_rate=0.1)
    assert (peer["backward"], ours["backward"]) == (grid.network, Uniform())
    assert (peer["proposal"].epsilon, peer["proposal"].fade) == (0.1, 30_000)
    short = grid.shortened(5)
    assert (short.updates, short.proposal.epsilon, short.proposal.fade) == (12_500, 0.1, 6_000)
    assert study.rules("TFBind8").keys() == {PEER, DEFAULT}  # no sweep has been run


@pytest.mark.slow
@pytest.mark.trains
def test_it_runs_in_parts_and_leaves_out_what_has_no_table(tmp_path, monkeypatch):
    monkeypatch.delenv(benchmarks.QM9, raising=False)
    smoke = SCALES["smoke"]
    grid = replace(smoke.tasks["hypergrid 8^2"], make=partial(Hypergrid, 4), updates=10)
    tasks = {"hypergrid 4^2": grid, "QM9-small": SCALES["paper"].tasks["QM9-small"]}
    monkeypatch.setitem(SCALES, "smoke", replace(smoke, tasks=tasks, seeds=1, lines=2))
    first = reproduce("benchmarks", out=tmp_path, only=["Adam"]).read_text()
    begun = json.loads((tmp_path / "benchmarks.smoke.json").read_text())["runs"]
    assert {run["method"].partition(" (")[0] for run in begun.values()} == {PEER, ADAM}
    assert "## Comparisons" not in first
    text = reproduce("benchmarks", out=tmp_path).read_text()
    written = json.loads((tmp_path / "benchmarks.smoke.json").read_text())
    assert len(written["runs"]) == 2 * 2 + 4
    assert set(written["milliseconds"]["hypergrid 4^2"]) == set(METHODS)
    assert text.count("| hypergrid 4^2 |") == 8
    assert "QM9-small" in text
    assert (tmp_path / "benchmarks.smoke.kl.png").read_bytes().startswith(b"\x89PNG")
