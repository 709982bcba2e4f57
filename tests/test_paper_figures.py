"""Figures of the paper's experiments: one look for each method, and what graphs show."""

import json
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from paper import figures
from paper.experiments import (
    benchmarks_page,
    continuation,
    deceptive_methods,
    hypergrid,
    objectives,
    structured,
)
from paper.experiments import walk as walk_experiment

RESULTS = Path(__file__).parent.parent / "results"


def methods() -> set[str]:
    """Every method that a figure draws."""
    tabular = (hypergrid.METHODS, objectives.METHODS, walk_experiment.METHODS)
    by_name = (continuation.METHODS, deceptive_methods.METHODS, structured.METHODS)
    drawn = {curve["method"] for path in RESULTS.glob("*.paper.json")
             for curve in json.loads(path.read_text()).get("curves", ())}  # fmt: skip
    return (
        {method.name for some in tabular for method in some}
        | {name for some in by_name for name in some}
        | {*deceptive_methods.RIVALS, *benchmarks_page.METHODS, "exact posterior"}
        | drawn
    )


def test_every_method_has_a_look_of_its_own():
    assert methods() - set(figures.STYLES) == set()
    assert [look for look, count in Counter(figures.STYLES.values()).items() if count > 1] == []
    looks = [(colour, marker) for colour, marker, _ in figures.STYLES.values()]
    assert len(looks) == len(set(looks))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch):
    """Figures that are looked at instead of written."""
    found = []
    monkeypatch.setattr(figures, "save", lambda figure, path: found.append(figure) or path)
    yield found
    plt.close("all")


def test_a_method_looks_the_same_in_every_panel_and_no_legend_covers_curves(kept, tmp_path: Path):
    line = ([0, 1, 2], np.ones((3, 2)))
    panels = {"one": {"Adam": line, "SGD": line}, "two": {"SGD": line}}
    figures.draw_training(panels, "TV", tmp_path / "x.png", columns=2, log=True)
    one, two = kept[0].axes
    looks = [
        {drawn.get_label(): (drawn.get_color(), drawn.get_marker()) for drawn in axis.get_lines()}
        for axis in (one, two)
    ]
    assert looks[0]["SGD"] == looks[1]["SGD"] == figures.STYLES["SGD"][:2]
    assert one.get_legend() is None
    assert two.get_legend() is None
    assert [text.get_text() for text in kept[0].legends[0].get_texts()] == ["Adam", "SGD"]


def test_graphs_show_probable_edges_and_whether_the_reference_has_them(kept, tmp_path: Path):
    names = ["a", "b", "c"]
    truth = pd.DataFrame([[0, 1, 0], [0, 0, 0], [0, 0, 0]], names, names)
    law = pd.DataFrame([[0, 0.9, 0.2], [0, 0, 0.4], [0, 0, 0]], names, names)
    laws = {"consensus": truth, "sampler": law}
    figures.draw_agreement(laws, "consensus", tmp_path / "x.png")
    arrows = [p for p in kept[0].axes[1].patches if isinstance(p, FancyArrowPatch)]
    looks = {(to_hex(p.get_edgecolor()), p.get_alpha()) for p in arrows}
    assert looks == {("#0072b2", 0.9), ("#e69f00", 0.4)}  # 0.2 is left out
    widths = {p.get_alpha(): p.get_linewidth() for p in arrows}
    assert widths[0.9] > widths[0.4]
