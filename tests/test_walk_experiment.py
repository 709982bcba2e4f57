"""The lazy walk's experiment: what it computes besides training, and its page."""

from dataclasses import replace

import numpy as np
import pytest

from natgfn.metrics import METRICS
from natgfn.policies import Constant, Tabular
from paper.experiments import _of_studies, objectives, walk
from paper.experiments.study import PAPER, Scale, Study
from paper.tables import DEFAULT, TUNED, UNTUNED

pytestmark = pytest.mark.slow

SMALL = Scale(updates=20, seeds=2, sweep_seeds=1, sweep_points=1)


@pytest.fixture(scope="module")
def space():
    return walk.enumerated("smoke", "Rings")


def test_one_method_under_both_backward_policies(space, tmp_path, capsys):
    (exact,) = [method for method in walk.METHODS if method.name == "Natural (exact)"]
    studies = walk.compare("Rings", space, SMALL, tmp_path, methods=(exact,))
    assert [study.setting["P_B"] for study in studies] == [walk.NORMALISED, walk.CONSTANT]
    for study in studies:
        assert [row["setting"]["rates"] for row in study.rows][:3] == [PAPER, TUNED, UNTUNED]
        assert study.rows[1]["routes"].keys() == {"joint", "pairs", "direct"}
    assert studies[1].rows[-1]["method"] == walk.OPTIMUM
    assert "Natural (exact), tuned rates: TV" in capsys.readouterr().err


def test_the_optimum_of_a_constant_backward_policy_is_reward_times_returns(space, tmp_path):
    """$h(x)$ by counting walks: a fifth for each of their steps."""
    study = Study({"target": "Rings"}, space, Constant(), SMALL, tmp_path)
    walk.add_optimum(study)
    counts = np.zeros((7, 7))
    counts[3, 3] = 1.0
    for _ in range(6):
        padded = np.pad(counts, 1)
        moves = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
        counts = sum(padded[1 + i : 8 + i, 1 + j : 8 + j] for i, j in moves) / 5
    law = np.exp(space.log_rewards) * counts.ravel()
    law /= law.sum()
    np.testing.assert_allclose(study.curves[-1]["law"], law, rtol=1e-4)
    tv = np.abs(law - np.exp(space.log_target)).sum() / 2
    assert study.rows[-1]["metrics"]["tv"]["mean"] == pytest.approx(tv, rel=1e-6)
    assert tv > 0.1
    (other,) = study.rows[-1]["alternatives"].values()
    assert other["tv"] == pytest.approx(tv, rel=0.1)
    assert other["tv"] != pytest.approx(tv, rel=1e-3)


def test_routes_of_a_uniform_walk(space):
    """Pairs keep the plane together, so they are exact; the others lose what is out of reach."""
    found = walk.routes(space, Tabular.forward(space))
    assert found["pairs"]["rho"] == pytest.approx(0, abs=1e-9)
    assert found["pairs"]["lost"] == pytest.approx(0, abs=1e-9)
    for route in ("joint", "direct"):
        assert 0 < found[route]["lost"] < 0.5
        assert found[route]["rho"] > 0.01


def test_a_mode_needs_half_of_its_due(space):
    target = np.exp(space.log_target)
    assert walk.half_modes(space, target) == space.modes.sum()
    assert walk.half_modes(space, 0.49 * target) == 0
    assert walk.half_modes(space, np.where(space.modes, 0.51, 0) * target) == space.modes.sum()


def made_up(space, tmp_path, target, backward, tv):
    """A study whose methods ended at given distances."""
    setting = {"target": target, "P_B": backward}
    study = Study(setting, space, walk.BACKWARD[backward], SMALL, tmp_path)
    law = np.exp(space.log_target)
    for (name, rates), value in tv.items():
        metrics = {metric: np.full((3, 2), value) for metric in METRICS}
        metrics["modes"] = np.full((3, 2), float(space.modes.sum()))
        study.add(name, study.row_setting(rates, None), np.arange(3), metrics, law, {})
        study.rows[-1]["metrics"]["half"] = {"mean": 4.0, "std": 0.0}
    return study


def test_claims_page_and_figures_come_from_the_rows(space, tmp_path):
    tuned = {(name, TUNED): 0.004 for name in walk.NATURALS} | {(DEFAULT, UNTUNED): 0.003}
    slow = {("Euclidean", TUNED): 0.02, ("Adam", TUNED): 0.006}
    good = made_up(space, tmp_path, "Rings", walk.NORMALISED, slow | tuned)
    biased = dict.fromkeys(tuned, 0.33) | dict.fromkeys(slow, 0.4)
    biased |= {(walk.OPTIMUM, "computed"): 0.335}
    constant = made_up(space, tmp_path, "Rings", walk.CONSTANT, biased)
    found = walk.claims([good, constant])
    assert all(claim["holds"] for claim in found)
    worse = made_up(
        space,
        tmp_path,
        "Rings",
        walk.NORMALISED,
        slow
        | tuned
        | {
            ("Euclidean", TUNED): 0.007,
            ("Adam", TUNED): 0.002,
            ("Natural (messages)", TUNED): 0.03,
        },
    )
    failed = [claim["claim"] for claim in walk.claims([worse]) if not claim["holds"]]
    assert "Natural (messages): TV at most 0.005" in failed
    assert any("messages end where the joint does" in claim for claim in failed)
    assert any("half of tuned Euclidean" in claim for claim in failed)
    assert f"{DEFAULT}, untuned, ends below tuned Adam in TV" in failed
    assert "Natural (exact) ends below tuned Adam in TV" in failed

    good.rows[1]["routes"] = {"joint": {"rho": 0.5, "lost": 0.25}}
    results = _of_studies(walk, [good, constant]) | {
        "experiment": "walk",
        "scale": "smoke",
        "about": "text",
        "command": "c",
        "versions": {},
    }
    page = walk.page(results)
    assert "0.3565" in page.split("P_B constant")[1]
    assert "0.3565" not in page.split("P_B constant")[0]
    assert "| Rings | normalised | joint | 0.5 | 25.00% |" in page
    assert "| target=Rings, P_B=normalised | 0.003 | Natural (sample) 0.004;" in page
    drawn = walk.figures(results, tmp_path, "walk.smoke")
    assert len(drawn) == 5
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_every_objective_is_compared_under_every_rule(tmp_path, monkeypatch):
    side, _, size = objectives.SCALES["smoke"]
    size = replace(size, updates=20, seeds=1)
    monkeypatch.setitem(objectives.SCALES, "smoke", (side, 1, size))
    (study,) = objectives.run("smoke", None, tmp_path)
    assert [row["method"] for row in study.rows] == [
        "Euclidean",
        "Adam",
        objectives.NATURAL,
        DEFAULT,
    ]
    assert all("TrajectoryBalance" in str(row["objective"]) for row in study.rows)
    assert len(objectives.claims([study])) == 3
    results = {"curves": study.curves}
    (path,) = objectives.figures(results, tmp_path, "objectives.smoke")
    assert path.stat().st_size > 5_000
