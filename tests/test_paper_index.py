"""The index of the paper: no label is missing, and what it links to is there."""

import re
from pathlib import Path

import pytest
from test_cli import assert_one_line, natgfn

import paper.index
from paper.experiments import EXPERIMENTS
from paper.index import INDEX, index_page, reproduce_all

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


def test_every_label_of_the_paper_is_in_the_index():
    labels = (ROOT / "paper" / "data" / "labels.txt").read_text().split()
    assert len(labels) == len(set(labels)) == 26
    assert set(INDEX) == set(labels)
    assert {entry.experiment for entry in INDEX.values()} <= set(EXPERIMENTS)


def test_the_committed_index_is_that_of_the_committed_results():
    text = (RESULTS / "index.paper.md").read_text()
    assert text == index_page(RESULTS, "paper")
    assert "not run" not in text
    rows = {row.split("`")[1]: row for row in text.splitlines() if row.startswith("| `")}
    for label, entry in INDEX.items():
        links = re.findall(r"\]\(([^)]+)\)", rows[label])
        assert len(links) == 1 + len(entry.figures), label  # the page, and every figure
        assert all((RESULTS / link).exists() for link in links)


def test_all_runs_every_experiment_and_writes_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ran = []

    def run(name: str, **how):
        ran.append((name, how["scale"]))
        (tmp_path / f"{name}.smoke.json").write_text('{"claims": [{"holds": true}, {"holds": 0}]}')

    monkeypatch.setattr(paper.index, "reproduce", run)
    page = reproduce_all(scale="smoke", out=tmp_path)
    assert ran == [(name, "smoke") for name in EXPERIMENTS]
    row = next(x for x in page.read_text().splitlines() if "fig:triangle_case" in x)
    assert "1 of 2" in row
    assert "**not run**" in row  # it wrote no page
    assert_one_line(natgfn("reproduce", "all", "--only", "x"), 2, "name it instead of all")
