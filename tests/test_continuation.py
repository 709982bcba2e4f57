"""Paired continuations of one checkpoint, on graphs of three and four variables."""

import json
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dag_oracles import random_weights

from natgfn.algorithm import advance, of_seed
from natgfn.envs import Dags
from natgfn.policies import Network
from paper.experiments import continuation, dag_synthetic, reproduce
from paper.experiments.continuation import (
    ADAM,
    CONTROLLED,
    METHODS,
    WARM_UP,
    Case,
    Continuation,
    Method,
    Scale,
    branch,
    draw_probe,
    residuals,
)
from paper.experiments.continuation_page import area, updates_to
from paper.rules import ControlledAdam

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A function that makes the state after ten updates, and what made it."""
    env = Dags(random_weights(3, 1.0, 0))
    study = Continuation(Scale(batch=8), tmp_path_factory.mktemp("work"), ())
    case = Case("", 3, ("a", "b", "c"), env.log_weights, np.zeros((3, 3), int))
    setup = replace(study.setup("MLP", case, env, WARM_UP, 10), policy=Network(8, 1))
    algorithm = setup.algorithm()

    def make():
        return advance(algorithm, setup.start(), jnp.array(10))[0]

    return algorithm, make


def arrays(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


def assert_identical(one, other):
    for x, y in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", METHODS)
def test_copies_are_identical_but_for_the_optimiser(checkpoint, name):
    _, make = checkpoint
    warm = make()
    copy = branch(warm, METHODS[name])
    for part in ("flow", "memory", "key", "step", "rejected"):
        assert_identical(getattr(copy, part), getattr(warm, part))
    if METHODS[name].inherits:
        assert_identical(copy.optimiser["forward"][0], warm.optimiser["forward"][0])
        assert any(np.any(x) for x in arrays(copy.optimiser["forward"][0]))
    else:
        fresh = (
            METHODS[name]
            .rule.transform()
            .init(eqx.filter(of_seed(warm.flow, 0), eqx.is_inexact_array))
        )
        assert_identical(of_seed(copy.optimiser, 0), fresh)


def test_adam_goes_on_as_if_nothing_had_happened(checkpoint):
    algorithm, make = checkpoint
    copy = branch(make(), METHODS[ADAM])
    expected, _ = advance(algorithm, make(), jnp.array(5))
    found, _ = advance(algorithm, copy, jnp.array(5))
    assert_identical(found, expected)


def test_paired_rules_see_the_same_batches_and_part_only_by_their_steps(checkpoint):
    algorithm, make = checkpoint
    wide = Method(ControlledAdam(norm=1e6, kl=1e6), inherits=True)
    other = eqx.tree_at(lambda a: a.rule, algorithm, wide.rule)
    expected, losses = advance(algorithm, branch(make(), METHODS[ADAM]), jnp.array(5))
    found, same = advance(other.with_traced_numbers(), branch(make(), wide), jnp.array(5))
    np.testing.assert_array_equal(found.key, expected.key)
    np.testing.assert_allclose(same, losses, rtol=1e-5)
    for x, y in zip(arrays(found.flow), arrays(expected.flow), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_a_probe_has_a_random_stream_of_its_own(checkpoint):
    algorithm, make = checkpoint
    env, states = algorithm.env, make()
    flow = of_seed(states.flow, 0)
    probe = draw_probe(env, flow, 50, 3)
    assert_identical(probe, draw_probe(env, flow, 50, 3))
    assert not np.array_equal(probe.actions, draw_probe(env, flow, 50, 4).actions)
    found = residuals(env, flow, probe)
    moved = eqx.tree_at(lambda f: f.log_z, flow, flow.log_z + 1)
    np.testing.assert_allclose(residuals(env, moved, probe), found + 1, rtol=1e-5)


def curve(*values):
    return {"steps": [0, 50, 100], "loss": values}


def test_areas_are_means_over_updates_of_what_is_left():
    assert area(curve(8.0, 4.0, 4.0), "loss") == pytest.approx((0.75 + 0.5) / 2)
    assert updates_to(curve(8.0, 4.0, 4.0)) == pytest.approx(25)
    assert updates_to(curve(8.0, 7.0, 5.0)) == pytest.approx(75)
    assert updates_to(curve(8.0, 7.0, 6.5)) == np.inf


@pytest.mark.parametrize(("seed", "edges"), [(0, 7), (1, 8), (2, 11)])
def test_synthetic_graphs_are_the_papers_and_acyclic(seed, edges):
    truth, data = dag_synthetic.draw_data(10, seed)
    assert truth.sum() == edges
    assert np.trace(np.linalg.matrix_power(np.eye(10) + truth, 10)) == 10
    for child in range(10):
        parents = np.flatnonzero(truth[:, child])
        effects, *_ = np.linalg.lstsq(data[:, parents], data[:, child])
        left = data[:, child] - data[:, parents] @ effects
        assert 0.7 < left.std() < 1.3
        assert np.all((np.abs(effects) > 0.2) & (np.abs(effects) < 2.3))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continuation, "METHODS", {name: METHODS[name] for name in (ADAM, CONTROLLED)})
        reproduce("dag-sachs", scale="smoke", out=out, only=("MLP",))
    return out


def test_runs_start_from_one_checkpoint_and_are_all_counted(results):
    runs = json.loads((results / "dag-sachs.smoke.json").read_text())["runs"]
    assert [run["method"] for run in runs] == [ADAM, CONTROLLED]
    for name in continuation.CURVES:
        assert runs[0][name][0] == runs[1][name][0]
        assert runs[0][name][-1] != runs[1][name][-1]
    for run in runs:
        assert run["steps"] == [0, 5, 10]
        assert (run["rejected"], run["refused"]) == (0, 0)
        assert np.shape(run["marginals"]) == (4, 4)
    assert 0 < runs[1]["divergence"] <= 1e-4


def test_the_page_has_the_papers_rows_and_the_exact_posterior(results):
    text = (results / "dag-sachs.smoke.md").read_text()
    assert "| *KL-controlled Adam* |  | 0.734 ± 0.006 |" in text
    assert "| exact posterior |" in text
    found = json.loads((results / "dag-sachs.smoke.json").read_text())
    exact = found["cases"][0]["final"]["edges"]
    error = found["runs"][0]["final"]["expected_edges_error"]
    assert found["runs"][0]["final"]["edges"] == pytest.approx(exact + error)
    for kind in ("convergence", "diagnostics", "graphs"):
        assert (results / f"dag-sachs.smoke.mlp.{kind}.png").stat().st_size > 10_000


def test_parts_are_merged(results, tmp_path):
    for name in ("json", "md"):
        source = results / f"dag-sachs.smoke.{name}"
        (tmp_path / source.name).write_text(source.read_text())
    reproduce("dag-sachs", scale="smoke", out=tmp_path, only=("nothing has this title",))
    found = json.loads((tmp_path / "dag-sachs.smoke.json").read_text())
    assert len(found["runs"]) == 2
