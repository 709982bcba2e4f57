"""The benchmarks of growth and of the machine's peak: their arithmetic, and a run of each."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks import roofline, scaling
from benchmarks.measure import Measurement
from benchmarks.peers.workers.tasks import Task
from natgfn.cli.commands import app


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
    small = Task("grid", 2, 4, 4)
    monkeypatch.setattr(roofline, "TASKS", (small, small))
    monkeypatch.setattr(roofline, "SHARES", {(small, "fresh"): 0.0, (small, "long"): 2.0})
    monkeypatch.setattr(roofline, "peak_flops", lambda _: 1e12)
    monkeypatch.setattr(roofline, "peak_bytes", lambda _: 1e9)
    assert roofline.bench_roofline(tmp_path, quick=True) == 1
    results = json.loads((tmp_path / "bench.roofline.quick.json").read_text())
    assert [row["verdict"] for row in results["limits"]] == ["ok", "MISSED"]
    fresh, natural = results["tasks"][:2]
    assert fresh["useful"] == pytest.approx(roofline.useful(fresh["visits"], 2, 3))
    assert natural["products"] > fresh["products"] == 0
    assert "4D" not in (tmp_path / "bench.roofline.quick.md").read_text()


def test_scaling_writes_its_page(tmp_path, monkeypatch):
    cases = tuple(scaling.Case("seeds, table", 3, 4, width=0, seeds=n) for n in (1, 5))
    monkeypatch.setattr(scaling, "SWEEPS", {"seeds, table": cases})
    monkeypatch.setattr(scaling, "SEEDS", 1e9)
    assert scaling.bench_scaling(tmp_path, quick=True) == 0
    results = json.loads((tmp_path / "bench.scaling.quick.json").read_text())
    assert [p["seeds"] for p in results["sweeps"][0]["points"]] == [1, 5]
    assert results["sweeps"][0]["exponents"]["bytes"] > 0
    assert "| seeds, table | Adam | 1, 5 |" in (tmp_path / "bench.scaling.quick.md").read_text()


def test_an_option_that_a_benchmark_does_not_have_is_one_line():
    result = CliRunner().invoke(app, ["bench", "tabular", "--quick"])
    assert result.exit_code == 2
    assert "bench tabular has no --quick: leave it out" in result.output
