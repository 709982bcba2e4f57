"""Probabilities of edges for other programs: networkx, GraphML and DOT.

Names of variables are data, not syntax: in files a vertex is called n0, n1, ..., and its name is
quoted as the format asks.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    import networkx

_NO_TEXT = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML has no place for, a carriage return among them, which it reads as a line."""


def graph_of(marginals: pd.DataFrame, threshold: float) -> "networkx.DiGraph":
    """All variables, and the edges at least as probable as the threshold, with `probability`."""
    import networkx as nx  # takes long to import

    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}")
    names, values = list(marginals.columns), marginals.to_numpy()
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    for i, j in zip(*(values >= threshold).nonzero(), strict=True):
        graph.add_edge(names[i], names[j], probability=float(values[i, j]))
    return graph


def write_graphml(graph: "networkx.DiGraph", path: str | Path) -> None:
    """A GraphML file: vertices have a `name`, edges a `probability`."""
    import networkx as nx

    numbered = nx.DiGraph()
    place = {name: f"n{number}" for number, name in enumerate(graph)}
    for name, vertex in place.items():
        numbered.add_node(vertex, name=_text(name))
    for source, target, probability in graph.edges(data="probability"):
        numbered.add_edge(place[source], place[target], probability=probability)
    nx.write_graphml(numbered, path)


def write_dot(graph: "networkx.DiGraph", path: str | Path) -> None:
    """A DOT file: vertices have a `label`, edges a `probability`, and two digits as a label."""
    place = {name: f"n{number}" for number, name in enumerate(graph)}
    lines = [f'  {vertex} [label="{_label(name)}"];' for name, vertex in place.items()]
    for source, target, probability in graph.edges(data="probability"):
        about = f'probability={probability!r}, label="{probability:.2f}"'
        lines.append(f"  {place[source]} -> {place[target]} [{about}];")
    Path(path).write_text("\n".join(["digraph {", *lines, "}"]) + "\n", encoding="utf-8")


def _text(name: str) -> str:
    return _NO_TEXT.sub("\ufffd", name)


def _label(name: str) -> str:
    r"""What Graphviz shows as the name: it reads `\n`, `\G` and the like, and `&lt;`."""
    text = _text(name).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return text.replace("&", "&amp;")
