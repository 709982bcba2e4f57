"""The deceptive experiment on a tiny grid: run in parts, merged, and laid out on its page."""

import json

import pytest

from natgfn import NatgfnError
from natgfn.training.record import Record
from paper.experiments import deceptive, deceptive_page, reproduce
from paper.experiments.deceptive import Scale
from paper.experiments.deceptive_methods import (
    EXPLORE,
    METHODS,
    MIXED,
    ON_POLICY,
    OURS,
    RIVALS,
    SWEEP_SEED,
    SWEEPS,
    adam,
    cost,
    sample_space,
)
from paper.experiments.deceptive_page import LABELS
from paper.experiments.study import steps_done
from paper.printed import PRINTED

pytestmark = pytest.mark.slow

TINY = Scale({6: 6}, (4,), 2, 1, 1, 5, 3)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Three methods and a sweep of one trial, trained in two calls."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(deceptive.SCALES, "smoke", TINY)
        methods = {
            "Adam": adam(1e-3),
            "Adam, eps": adam(1e-3)._replace(proposal=EXPLORE),
            OURS: METHODS[OURS],
        }
        sweeps = {
            "Adam": {"rate 0.01": adam(1e-2)},
            OURS: {"damping 5": sample_space(5.0)},
        }
        for module in (deceptive, deceptive_page):
            patch.setattr(module, "METHODS", methods)
            patch.setattr(module, "SWEEPS", sweeps)
        reproduce("deceptive", out=out, only=["Adam", "seed=0"])
        out.joinpath("first.json").write_text(out.joinpath("deceptive.smoke.json").read_text())
        trained = stamps(out)
        page = reproduce("deceptive", out=out)
        assert trained.items() <= stamps(out).items()  # not trained again
        out.joinpath("second.md").write_text(page.read_text())
        everything, kept = load(out), stamps(out)
        reproduce("deceptive", out=out, only=["nothing has this title"])
        assert stamps(out) == kept
        assert load(out)["runs"] == everything["runs"]
    return out


def stamps(out) -> dict[str, int]:
    found = (out / ".work").rglob("checkpoint.npz")
    return {path.parent.name: path.stat().st_mtime_ns for path in found}


def load(out, name="deceptive.smoke.json") -> dict:
    return json.loads((out / name).read_text())


def titles(results) -> set[tuple]:
    return {(e["batch"], e["name"], e["seed"]) for e in results["runs"]}


def test_a_part_trains_what_has_all_its_words(out):
    assert titles(load(out, "first.json")) == {(16, "Adam", 0), (16, "Adam, eps", 0)}


def test_a_second_call_adds_the_rest(out):
    """Sweeps, then what they choose, also with large batches."""
    sweep, ours = SWEEP_SEED, f"{OURS}, tuned"
    assert titles(load(out)) == {
        (16, "Adam", 0),
        (16, "Adam, eps", 0),
        (16, OURS, 0),
        (16, "Adam (rate 0.01)", sweep),
        (16, f"{OURS} (damping 5)", sweep),
        (16, "Adam, tuned", 0),
        (16, ours, 0),
        (5, "Adam, tuned", 0),
        (5, ours, 0),
    }
    assert load(out)["best"] == {"Adam": "rate 0.01", OURS: "damping 5"}
    first = {e["name"]: e for e in load(out, "first.json")["runs"]}
    again = {e["name"]: e for e in load(out)["runs"] if e["batch"] == 16}
    assert {name: again[name] for name in first} == first


def test_the_page_has_a_table_for_every_setting_and_step(out):
    text = (out / "second.md").read_text()
    for batch in (16, 5):
        for step in (4, 6):
            assert f"## H = 6, batch {batch}, {step:,} updates" in text
    assert "Best: Adam: rate 0.01; Natural (sample space): damping 5." in text
    runs = {(e["batch"], e["name"]): e for e in load(out)["runs"]}
    ours, adam = runs[5, f"{OURS}, tuned"], runs[5, "Adam, tuned"]
    row = f"| H=6, batch 5, 6 | {OURS}, tuned | Adam, tuned | "
    (line,) = (line for line in text.splitlines() if line.startswith(row))
    cells = line.removeprefix(row).split(" | ")
    assert cells[3] == "1.3"
    for cell, step in ((cells[1], -1), (cells[5], -2)):
        mine, theirs = ours["kl"][step], adam["kl"][-1]
        verdict = "yes" if mine < theirs else "**no**"
        assert cell == f"{verdict}, {mine:.4g} against {theirs:.4g}"
    entry = next(e for e in load(out)["runs"] if (e["batch"], e["name"]) == (16, "Adam, eps"))
    assert entry["steps"] == [0, 2, 4, 6]
    assert text.count(f"| Adam, eps | 1 | {entry['tv'][2]:.4g} ± 0 |") == 1
    assert len(list(out.glob("*.png"))) == 4


def test_the_papers_tables_are_whole_and_consistent():
    """ELBO and gap add up to the expected log-reward of the target in every row."""
    theirs = [name for name in METHODS if not name.startswith((OURS, "Adam 5e-3"))]
    paper = {name.removesuffix(ON_POLICY) for name in theirs}
    for (side, _), label in LABELS.items():
        rows = PRINTED[label].rows
        assert rows.keys() == paper
        for entries in rows.values():
            elbo, gap = (float(entries[name].split(" ± ")[0]) for name in ("ELBO", "Gap"))
            assert elbo + gap == pytest.approx({128: -0.2261, 256: -0.2510}[side], abs=2e-4)


def test_costs_are_those_of_the_rule_and_of_its_batches():
    assert cost("Adam, tuned") == 1
    assert cost(OURS) == cost(f"{OURS}, tuned") == 1.3
    assert cost(f"{OURS}{MIXED}") == 2 * 1.3
    assert cost(f"Adam 5e-3{MIXED}") == 2
    assert cost(f"{OURS} + Teacher") - cost(OURS) == pytest.approx(cost("Adaptive Teacher") - 1)
    assert {name.removesuffix(", tuned") for name in RIVALS} <= METHODS.keys() | SWEEPS.keys()


def test_an_experiment_without_parts_refuses_only(tmp_path):
    with pytest.raises(NatgfnError, match="triangle cannot be run in parts") as caught:
        reproduce("triangle", out=tmp_path, only=["Adam"])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_results_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "deceptive.smoke.json").write_text("{")
    with pytest.raises(NatgfnError, match=r"cannot merge with .*deceptive\.smoke\.json"):
        reproduce("deceptive", out=tmp_path)


def test_a_run_that_was_stopped_at_once_has_not_begun(tmp_path):
    assert steps_done(tmp_path) == -1
    Record(tmp_path / "record.jsonl").start({})
    assert steps_done(tmp_path) == -1


def test_sweeps_alone_have_no_figures(out, tmp_path):
    results = load(out)
    sweeps = [e for e in results["runs"] if e["seed"] == SWEEP_SEED]
    assert len(sweeps) == 2
    assert deceptive.figures(results | {"runs": sweeps}, tmp_path, "none") == []
    assert "Sweeps" in deceptive.page(results | {"runs": sweeps})


def test_a_panel_without_runs_stays_empty(out, tmp_path):
    results = load(out)
    ours = [e for e in results["runs"] if e["name"] == OURS]
    assert len(deceptive.figures(results | {"runs": ours}, tmp_path, "ours")) == 4


def test_a_tuned_method_that_is_its_default_is_given_once(out):
    results = load(out)
    names = {row.name for row in deceptive_page.rows(results) if row.batch == 16}
    assert {OURS, f"{OURS}, tuned"} <= names
    default = next(e for e in results["runs"] if e["name"] == OURS)
    runs = [
        e | {"method": default["method"]} if e["name"] == f"{OURS}, tuned" else e
        for e in results["runs"]
    ]
    kept = {(row.batch, row.name) for row in deceptive_page.rows(results | {"runs": runs})}
    assert (16, OURS) in kept
    assert (16, f"{OURS}, tuned") not in kept
    assert (5, f"{OURS}, tuned") in kept  # there is no other with this batch
