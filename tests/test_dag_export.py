"""Graphs for other programs: what they read is what was written, whatever the names."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pydot
import pytest
from test_dag_exact import names, random_weights

from natgfn.dag import graph_of, solve, write_dot, write_graphml

NAMES = ['a"b', "<x>", "$$", "back\\", "two\nlines", "\\N", "&lt;", "]]>", "n0", " x; y ", "ü\\n"]


@pytest.fixture(scope="module")
def marginals() -> pd.DataFrame:
    values = np.random.default_rng(0).random((len(NAMES), len(NAMES)))
    np.fill_diagonal(values, 0)
    return pd.DataFrame(values, index=NAMES, columns=NAMES)


def test_a_graph_has_all_variables_and_the_probable_edges(marginals: pd.DataFrame):
    graph = graph_of(marginals, 0.4)
    assert list(graph) == NAMES
    expected = {(i, j): p for (i, j), p in marginals.stack().items() if p >= 0.4}
    assert nx.get_edge_attributes(graph, "probability") == expected
    assert 0 < len(expected) < marginals.size
    least = min(expected.values())
    assert len(graph_of(marginals, least).edges) == len(expected)  # not only above


def test_a_posterior_as_a_graph():
    found = solve(random_weights(3, 1.0, 0), names(3))
    for source, target, about in found.graph(1e-9).edges(data=True):
        assert about == {"probability": found.edge_marginals.loc[source, target]}
    assert len(found.graph(1e-9).edges) == 6
    assert set(found.graph().edges) == {e for e in found.graph(1e-9).edges if
                                        found.edge_marginals.loc[e] >= 0.5}  # fmt: skip


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.1, float("nan")])
def test_a_threshold_is_a_probability(marginals: pd.DataFrame, threshold: float):
    with pytest.raises(ValueError, match="threshold must be above 0 and at most 1, got"):
        graph_of(marginals, threshold)


def test_graphml_is_read_as_it_was_written(marginals: pd.DataFrame, tmp_path: Path):
    graph, path = graph_of(marginals, 0.4), tmp_path / "posterior.graphml"
    write_graphml(graph, path)
    found = nx.read_graphml(path)
    found = nx.relabel_nodes(found, nx.get_node_attributes(found, "name"))
    assert list(found) == NAMES
    assert nx.get_edge_attributes(found, "probability") == nx.get_edge_attributes(
        graph, "probability"
    )


def test_characters_that_xml_has_no_place_for(tmp_path: Path):
    strange = ["a\x00", "a\x1b", "\ud800", "\uffff", "a\rb"]
    write_graphml(graph_of(pd.DataFrame(np.eye(5), strange, strange), 0.5), tmp_path / "x")
    found = [e.text for e in ElementTree.parse(tmp_path / "x").iterfind(".//{*}node/{*}data")]
    assert found == ["a\ufffd", "a\ufffd", "\ufffd", "\ufffd", "a\ufffdb"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydot's parser
def test_dot_is_read_as_it_was_written(marginals: pd.DataFrame, tmp_path: Path):
    graph, path = graph_of(marginals, 0.4), tmp_path / "posterior.dot"
    write_dot(graph, path)
    (read,) = pydot.graph_from_dot_file(path, encoding="utf-8")
    labels = [node.get("label") for node in read.get_nodes()]
    assert labels == [
        '"a\\"b"', '"<x>"', '"$$"', '"back\\\\"', '"two\\nlines"', '"\\\\N"', '"&amp;lt;"',
        '"]]>"', '"n0"', '" x; y "', '"ü\\\\n"',
    ]  # fmt: skip
    place = {f"n{number}": name for number, name in enumerate(NAMES)}
    found = {
        (place[e.get_source()], place[e.get_destination()]): float(e.get("probability"))
        for e in read.get_edges()
    }
    assert found == nx.get_edge_attributes(graph, "probability")
