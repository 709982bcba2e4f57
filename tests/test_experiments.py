"""Experiments at smoke scale: files, numbers and claims."""

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import tabular
from benchmarks.measure import Measurement
from natgfn import NatgfnError
from natgfn.envs import Hypergrid
from natgfn.metrics import METRICS
from natgfn.optim import SampleSpace
from natgfn.policies import Uniform
from natgfn.statespace import enumerate_states
from paper.experiments import EXPERIMENTS, hypergrid, reproduce, triangle, untuned
from paper.experiments.study import PAPER, Rates, Study, faster, middle
from paper.tables import DEFAULT, LISTED, TUNED, UNTUNED, cell, results_markdown, standing, table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    page = reproduce("triangle", scale="smoke", out=out)
    return out, page, json.loads((out / "triangle.smoke.json").read_text())


def test_reproduce_writes_rows_a_page_and_a_figure(results):
    out, page, written = results
    assert {"command", "configuration", "versions", "git", "rows", "curves"} <= written.keys()
    for row in written["rows"]:
        assert row["metrics"].keys() == set(METRICS)
        assert row["metrics"]["kl"].keys() == {"mean", "std", "paper"}
    assert (out / "triangle.smoke.png").read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert all(row["method"] in text for row in written["rows"])


def test_the_page_is_made_from_the_json_alone(results):
    _, page, written = results
    assert results_markdown(written) == page.read_text()


def test_a_row_is_the_end_of_its_curve(results):
    _, _, written = results
    for row, curve in zip(written["rows"], written["curves"], strict=True):
        for metric in ("kl", "tv", "loss"):
            assert row["metrics"][metric]["mean"] == pytest.approx(
                np.mean(curve[metric][-1]), rel=1e-4, abs=1e-16
            )


def test_a_second_call_goes_on_from_what_is_there(results, capsys):
    out, page, _ = results
    before = page.read_text()
    kept = {path: path.stat().st_mtime_ns for path in (out / ".work").rglob("checkpoint.npz")}
    assert reproduce("triangle", scale="smoke", out=out).read_text() == before
    assert kept == {
        path: path.stat().st_mtime_ns for path in (out / ".work").rglob("checkpoint.npz")
    }


def test_a_method_is_added_without_making_the_others_again(results, tmp_path):
    """Without their runs: only the rows, curves and sweeps of Adam are missing."""
    _, _, written = results
    cut = {
        key: [x for x in value if x["method"] != "Adam"]
        if key in ("rows", "curves", "sweeps")
        else value
        for key, value in written.items()
    }
    cut["rows"][0]["metrics"]["kl"]["mean"] = 0.123
    cut |= {"command": "an older one", "versions": {"natgfn": "0.0"}}
    path = tmp_path / "triangle.smoke.json"
    path.write_text(json.dumps(cut))
    again = reproduce("triangle", scale="smoke", out=tmp_path).read_text()
    ran = {run.name.split("-")[2] for run in (tmp_path / ".work" / "triangle.smoke").iterdir()}
    assert ran == {"Adam"}
    added = json.loads(path.read_text())
    assert added["rows"][0]["metrics"]["kl"]["mean"] == 0.123  # taken over as it was
    assert [row["method"] for row in added["rows"]] == [row["method"] for row in written["rows"]]
    assert added["sweeps"] == written["sweeps"]
    assert added["curves"] == written["curves"]
    assert "Made by `an older one` with natgfn 0.0; then by `natgfn reproduce triangle" in again
    # A page that is only written again keeps the commands that made its numbers.
    assert reproduce("triangle", scale="smoke", out=tmp_path).read_text() == again


def test_the_exact_natural_gradient_without_noise_ends_in_rounding_error(results):
    """The advantage vanishes at the target, so the update is a contraction to it."""
    _, _, written = results
    kl = {
        row["method"]: row["metrics"]["kl"]["mean"]
        for row in written["rows"]
        if row["setting"]["rates"] == triangle.NOISE_FREE
    }
    assert kl["Natural (exact)"] < 1e-10 < 1e-4 < kl["Euclidean"]


def _study(tmp_path, curves):
    nodes, scale = triangle.SCALES["smoke"]
    space = enumerate_states(triangle.Triangles(nodes=3))
    study = Study({"nodes": nodes}, space, Uniform(), scale, tmp_path)
    for name, values in curves.items():
        metrics = {metric: np.array(values)[:, None] for metric in METRICS}
        study.add(name, {"rates": "any"}, np.arange(len(values)), metrics, np.ones(4) / 4, {})
    return study


def test_a_claim_needs_both_speed_and_the_better_end(tmp_path):
    study = _study(tmp_path, {"a": [1, 0.1, 0.01], "b": [1, 0.5, 0.02], "late": [1, 0.9, 0.009]})
    assert faster(study, "a", "b", "any", "kl")["holds"]
    assert not faster(study, "b", "a", "any", "kl")["holds"]
    assert not faster(study, "late", "a", "any", "kl")["holds"]


def test_a_sweep_takes_the_lowest_finite_divergence(tmp_path, monkeypatch):
    final = {1.0: 0.5, 2.0: float("nan"), 3.0: 0.2}

    class Fake:
        def __init__(self, rate):
            self.metrics = {"kl": np.array([[final[rate]]])}

    study = _study(tmp_path, {})
    study.scale = triangle.SCALES["paper"][1]
    monkeypatch.setattr(study, "run", lambda _title, rule, *_: Fake(rule), raising=False)
    method = triangle.Method("m", lambda rates: rates.forward, Rates(1.0), tuple(map(Rates, final)))
    assert study.sweep(method) == Rates(3.0)


def test_smoke_takes_the_middle_of_a_sweep():
    assert middle(tuple(map(Rates, (1.0, 2.0, 3.0, 4.0, 5.0))), 3) == tuple(
        map(Rates, (2.0, 3.0, 4.0))
    )
    assert len(middle(tuple(map(Rates, (1.0, 2.0))), 5)) == 2


def test_follow_exact_gradient_leaves_a_solved_problem_alone():
    """At rate zero nothing moves: the curve is flat at the uniform policy's divergence."""
    space = enumerate_states(triangle.Triangles(nodes=3))
    _, metrics, law = triangle.follow_exact_gradient(space, True, Rates(0.0, 0.0), 4)
    assert np.ptp(metrics["kl"]) == 0
    np.testing.assert_allclose(law, 1 / 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "triangel"}, "triangel"),
        ({"name": "triangle", "scale": "huge"}, "huge"),
        ({"name": "triangle", "seeds": 0}, "seeds"),
    ],
)
def test_reproduce_refuses_what_it_does_not_know(arguments, words, tmp_path):
    with pytest.raises(NatgfnError, match=words):
        reproduce(**arguments, out=tmp_path)


def test_every_experiment_has_both_scales():
    for experiment in EXPERIMENTS.values():
        assert experiment.SCALES.keys() == {"smoke", "paper"}


def test_a_table_has_a_column_for_each_head():
    assert table(["a", "b"], [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_a_cell_shows_the_papers_number_beside_ours():
    assert cell({"mean": 0.12345, "std": 0.01, "paper": 0.2}) == "0.1235 ± 0.01 (0.2)"
    assert cell({"mean": 0.5, "std": 0.0, "paper": None}) == "0.5 ± 0"


def test_a_missed_limit_is_said_and_fails_the_benchmark(monkeypatch, capsys):
    measured = [Measurement("fast", 1.0, 1.3, "x"), Measurement("slow", 2.0, 1.3, "x")]
    monkeypatch.setattr(tabular, "_measurements", lambda: iter(measured))
    assert tabular.bench_tabular() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("ok")
    assert lines[1].endswith("MISSED")
    monkeypatch.setattr(tabular, "_measurements", lambda: iter(measured[:1]))
    assert tabular.bench_tabular() == 0


def test_the_untuned_study_watches_every_update(tmp_path, monkeypatch):
    """The largest rise is that of a run evaluated after each update."""
    env, scale = untuned.SCALES["smoke"][1]
    small = replace(scale, updates=5, seeds=2)
    study = Study({"env": repr(env)}, enumerate_states(env), Uniform(), small, tmp_path)
    steps, metrics, _, rises = untuned.watch(study, SampleSpace(damping=1e-6))
    assert steps.tolist() == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(rises, np.diff(metrics["kl"], axis=0).max(axis=0), atol=1e-5)


def test_hypergrid_claims_and_figures_come_from_the_curves(tmp_path):
    studies = []
    for side in (4, 5):
        space = enumerate_states(Hypergrid(side=side))
        scale = hypergrid.SCALES["smoke"][side]
        study = Study({"side": side}, space, Uniform(), scale, tmp_path)
        for rates in (PAPER, TUNED, UNTUNED):
            names = [*(m.name for m in hypergrid.METHODS), DEFAULT, LISTED]
            names.sort(key=lambda name: name.startswith(("Natural", LISTED)))  # the last is best
            for k, method in enumerate(names):
                values = np.geomspace(1.0, 10.0 ** -(k + 1), 5)[:, None]
                metrics = dict.fromkeys(METRICS, values)
                law = np.full(side**2, 1 / side**2)
                study.add(method, study.row_setting(rates, None), np.arange(5), metrics, law, {})
        studies.append(study)
    assert all(claim["holds"] for claim in hypergrid.claims(studies))
    results = {"curves": [curve for study in studies for curve in study.curves]}
    drawn = hypergrid.figures(results, tmp_path, "hypergrid.smoke")
    assert len(drawn) == 9
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_where_the_default_stands_is_said_both_ways():
    final = {"Adam": 0.1, "Euclidean": 0.3, DEFAULT: 0.2, LISTED: 0.05}
    rows = [
        {"method": name, "metrics": {"kl": {"mean": kl}},
         "setting": {"side": 8, "rates": UNTUNED if name in (DEFAULT, LISTED) else TUNED,
                     "rate": None}}
        for name, kl in final.items()
    ]  # fmt: skip
    found = standing({"rows": rows})[-1]
    assert f"| side=8 | {DEFAULT} | 0.2 | Euclidean 0.3 | **Adam 0.1** |" in found
    assert f"| side=8 | {LISTED} | 0.05 | Adam 0.1; Euclidean 0.3 | none |" in found
    assert LISTED not in standing({"rows": rows[:-1]})[-1]


def test_terminal_laws_are_drawn_where_their_cells_are():
    """Heat maps reshape a law into the grid, so the objects must come in row-major order."""
    cells = np.asarray(enumerate_states(Hypergrid(side=5)).terminals.cell)
    np.testing.assert_array_equal(cells, np.indices((5, 5)).reshape(2, -1).T)
