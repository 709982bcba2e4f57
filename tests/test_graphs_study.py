"""The study of posteriors over graphs: its tables, its limits, and a run from end to end."""

import json

import networkx as nx
import numpy as np
import pytest

from natgfn.errors import NatgfnError
from paper.experiments import graphs, reproduce
from paper.experiments.dag_synthetic import draw_data


def test_the_graph_of_the_alarm_network_is_the_published_one():
    graph, names = graphs.alarm_graph()
    assert len(names) == 37
    assert graph.sum() == 46
    assert nx.is_directed_acyclic_graph(nx.from_numpy_array(graph, create_using=nx.DiGraph))
    assert graph[:, names.index("CCHL")].sum() == 4


def test_strong_effects_are_those_of_the_same_graph():
    weak, strong = (draw_data(8, 3, 5_000, sizes) for sizes in ((0.5, 2.0), (1.5, 3.0)))
    np.testing.assert_array_equal(weak[0], strong[0])
    child = np.flatnonzero(weak[0].sum(axis=0))[0]
    (parents,) = np.nonzero(weak[0][:, child])
    sizes = [np.linalg.lstsq(x[:, parents], x[:, child])[0] for _, x in (weak, strong)]
    assert np.all(np.abs(sizes[1]) > 1.4)
    assert np.all(np.abs(sizes[0]) < np.abs(sizes[1]))


def test_limits_are_from_above_but_for_the_share_and_unknown_numbers_miss_them():
    row = {"gap": 0.9, "share": 0.04, "worst": 0.02, "mean": None}
    limits = {"gap": 1.0, "share": 0.05, "worst": 0.02, "mean": 0.01}
    assert graphs.misses(row, limits) == ["share", "mean"]
    assert graphs.misses(row | {"share": 0.05, "mean": float("nan")}, limits) == ["mean"]


@pytest.mark.slow
def test_the_study_at_smoke_scale_compares_every_answer_with_the_exact_one(tmp_path):
    page = reproduce("graphs", scale="smoke", out=tmp_path)
    rows = json.loads((tmp_path / "graphs.smoke.json").read_text())["rows"]
    assert list(rows) == ["d=4, fit", "d=4, chains"]
    assert rows["d=4, chains"]["worst"] < 0.3
    assert all(0 < row["mean"] <= row["worst"] <= 1 for row in rows.values())
    assert "natgfn dag exact" in page.read_text()
    assert (tmp_path / "graphs.smoke.png").exists()


def test_a_command_that_fails_is_named(tmp_path):
    study = graphs.Graphs(tmp_path, (), {})
    with pytest.raises(NatgfnError, match=r"natgfn dag exact none.csv.*exit code 2"):
        study.command("broken", str(tmp_path / "none.csv"), ("exact",))
