"""The benchmarks of growth and of the machine's peak: their arithmetic, and a run of each."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks import roofline, scaling
from benchmarks.measure import Measurement
from benchmarks.peers.workers.tasks import Task
from natgfn.cli.commands import app
from natgfn.envs import Hypergrid
from natgfn.statespace import enumerate_states


def test_exponents_are_slopes_in_logarithms():
    assert scaling.exponent([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)
    points = [{"batch": n, "seconds": 1e-3 * n, "bytes": 5} for n in (16, 64)]
    assert scaling.line("batch", "Adam", points)["exponents"] == pytest.approx(
        {"seconds": 1.0, "bytes": 0.0}, abs=1e-9
    )


def test_useful_operations_against_a_count_by_hand():
    """Two coordinates, two hidden layers of 3, 4 actions: 2 x 3 look-ups, 3 x 3 and 3 x 4."""
    by_hand = 2 * 3 + 2 * 3 * 3 + 2 * 3 * 4
    assert roofline.evaluation(2, 4, width=3, depth=2) == by_hand
    assert roofline.useful(10.0, 2, 3) == 40 * (2 * 256 + 2 * 256 * 256 + 2 * 256 * 3)
    # Two rows of three: three entries of the Gram matrix, and three products with a vector.
    assert roofline.natural_products(2, 3) == 3 * 2 * 3 + 8 / 3 + 3 * 2 * 2 * 3


def test_parts_add_up_roughly():
    assert roofline.adds_up({"parts_over_whole": 1.2})
    assert not roofline.adds_up({"parts_over_whole": 0.5})


def test_a_limit_from_below_and_what_was_not_measured():
    assert Measurement("", 3.0, 2.0, at_least=True).good
    assert not Measurement("", 1.0, 2.0, at_least=True).good
    assert not Measurement("", float("nan"), 2.0, at_least=True).good
    assert not Measurement("", float("nan"), 2.0).good


def test_roofline_writes_its_page(tmp_path, monkeypatch):
    parts = {"rollout": 1e-3, "objective and gradient": 2e-3, "rule": -1e-4}
    made_up = {"seconds": 3e-3, "visits": 100.0, "useful": 1e9, "products": 0.0, "parts": parts}
    made_up |= {"parts_over_whole": 0.97, "evaluation": 1e-2, "first_call_s": 1.0}
    task = roofline.TASKS[1]
    monkeypatch.setattr(roofline, "_measure", lambda *_: dict(made_up))
    monkeypatch.setattr(roofline, "SHARES", {(task, "fresh"): 0.3, (task, "long"): 0.4})
    monkeypatch.setattr(roofline, "peak_flops", lambda _: 1e12)
    monkeypatch.setattr(roofline, "peak_bytes", lambda _: 1e9)
    assert roofline.bench_roofline(tmp_path, quick=True) == 1
    results = json.loads((tmp_path / "bench.roofline.quick.json").read_text())
    assert [row["verdict"] for row in results["limits"]] == ["ok", "MISSED"]
    assert (
        "2D h8, batch 128, fresh, Adam | 3.00 |"
        in (tmp_path / "bench.roofline.quick.md").read_text()
    )


@pytest.mark.slow
def test_an_update_and_its_parts_are_measured():
    task, space = Task("grid", 2, 4, 4), enumerate_states(Hypergrid(4))
    found = roofline._measure(task, space, task.lengths["fresh"], "natural", 1)
    assert found["visits"] == pytest.approx(4 * 3.0, rel=0.3)
    assert found["useful"] == pytest.approx(roofline.useful(found["visits"], 2, 3))
    assert found["products"] > 0
    assert found["parts_over_whole"] == pytest.approx(
        sum(found["parts"].values()) / found["seconds"]
    )


def test_scaling_writes_its_page(tmp_path, monkeypatch):
    def made_up(case, rule, rounds):
        return {"seeds": case.seeds, "seconds": 1e-3 * case.seeds, "bytes": 2**20 * case.seeds}

    sweep = "seeds, table"
    monkeypatch.setattr(scaling, "SWEEPS", {sweep: scaling.SWEEPS[sweep]})
    monkeypatch.setattr(scaling, "measure", made_up)
    monkeypatch.setattr(scaling, "in_turn", lambda case, other, *_, **__: case.seeds / other.seeds)
    assert scaling.bench_scaling(tmp_path, quick=True) == 1  # five times one
    results = json.loads((tmp_path / "bench.scaling.quick.json").read_text())
    assert results["sweeps"][0]["exponents"] == pytest.approx({"seconds": 1.0, "bytes": 1.0})
    assert [row["value"] for row in results["limits"]] == pytest.approx([5.0, 5.0])
    assert "| seeds, table | Adam | 1, 5 |" in (tmp_path / "bench.scaling.quick.md").read_text()


def test_time_and_memory_of_an_update_are_measured():
    found = scaling.measure(scaling.Case("batch", side=3, batch=4, width=0), "Adam", rounds=1)
    assert (found["batch"], found["states"], found["parameters"]) == (4, 18, 28)
    assert found["bytes"] > 4 * found["parameters"]
    assert found["seconds"] > 0


def test_an_option_that_a_benchmark_does_not_have_is_one_line():
    result = CliRunner().invoke(app, ["bench", "tabular", "--quick"])
    assert result.exit_code == 2
    assert "bench tabular has no --quick: leave it out" in result.output
