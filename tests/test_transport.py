"""Trajectory balance with a Sinkhorn divergence between terminal laws."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import explore, float64, make_flow, on_batch, random_tables

import natgfn as ng
from natgfn.envs import Hypergrid, LazyWalk
from natgfn.objectives import Transport

BLUR = 0.2
"""So much that a hundred iterations have converged."""


def costs(world) -> np.ndarray:
    cells = np.asarray(world.space.terminals.cell, float)
    return np.sum((cells[:, None] - cells[None]) ** 2, axis=2) / (world.space.env.sides[0] - 1) ** 2


def duals(p, q, cost):
    """The potentials of $OT_\\varepsilon$, from a dense cost."""
    kernel, v = np.exp(-cost / BLUR), q
    for _ in range(200):
        u = p / (kernel @ v)
        v = q / (kernel.T @ u)
    return -BLUR * np.log(kernel @ v), -BLUR * np.log(kernel.T @ u)


def transport_cost(p, q, cost):
    f, g = duals(p, q, cost)
    return p @ f + q @ g


def divergence(p, q, cost):
    self_costs = [transport_cost(x, x, cost) for x in (p, q)]
    return transport_cost(p, q, cost) - sum(self_costs) / 2


def terminal_law(world, pf):
    law = np.zeros(world.space.num_terminal)
    ends = [path.states[-1] - world.space.num_inner for path in world.paths]
    np.add.at(law, ends, oracles.path_probs(world, pf))
    return law


def gradients(space, flow, batch):
    return batch.gradient(), batch.potential


@float64
def test_the_gradient_is_that_of_the_divergence():
    """Finite differences of $S_\\varepsilon$ through the law of all trajectories."""
    world = explore(Hypergrid(side=3))
    tables = random_tables(world, 1)
    q = oracles.path_probs(world, tables.pf)
    exact = {"frequency": q, "objective": Transport(weight=0.7, blur=BLUR)}
    with_it, _ = on_batch(world, make_flow(tables), gradients, **exact)
    without, _ = on_batch(world, make_flow(tables), gradients, frequency=q)
    found = np.ravel(with_it.forward.logits - without.forward.logits)
    assert float(with_it.log_z) == float(without.log_z)
    cost, target = costs(world), np.exp(world.space.log_target)

    def moved(at, by):
        logits = tables.forward.copy()
        logits[at] += by
        pf = np.exp(oracles.log_softmax(logits, world.forward_valid))
        return divergence(terminal_law(world, pf), target, cost)

    step = 1e-4
    slopes = [
        0.7 * (moved(at, step) - moved(at, -step)) / (2 * step)
        for at in np.ndindex(tables.forward.shape)
    ]
    assert np.abs(slopes).max() > 1e-3
    np.testing.assert_allclose(found, slopes, atol=1e-5)


@float64
def test_the_batch_stands_in_for_both_laws():
    world = explore(Hypergrid(side=3))
    tables = random_tables(world, 1)
    picked = np.array([0, 1, 1, 4, 7])
    objective = Transport(blur=BLUR, exact=False)
    _, found = on_batch(world, make_flow(tables), gradients, picked, objective=objective)
    ends = [world.paths[i].states[-1] - world.space.num_inner for i in picked]
    law = np.bincount(ends, minlength=world.space.num_terminal) / len(ends)
    target = np.where(law > 0, np.exp(world.space.log_rewards), 0)
    target /= target.sum()
    cost = costs(world)
    expected = (duals(law, target, cost)[0] - duals(law, law, cost)[0])[ends]
    # Up to a constant, which the scores do not see.
    np.testing.assert_allclose(found - found[0], expected - expected[0], atol=1e-4)


@pytest.mark.slow
def test_following_it_brings_the_laws_together():
    """With residuals that count for next to nothing."""
    objective = Transport(penalty=lambda u: 1e-6 * u**2, weight=10.0)
    run = ng.train(
        LazyWalk(reach=2, steps=4),
        ng.optim.Euclidean(1.0),
        objective=objective,
        batch=64,
        updates=200,
        evaluate_every=200,
        progress=False,
    )
    cells = np.asarray(run.space.terminals.cell, float)
    cost = np.sum((cells[:, None] - cells[None]) ** 2, axis=2) / 16
    start = ng.metrics.evaluate(
        run.space,
        eqx.tree_at(
            lambda f: f.forward.logits,
            run.state.flow,
            jnp.zeros_like(run.state.flow.forward.logits),
        ),
    )[1][0]
    target = np.exp(run.space.log_target)
    before, after = (divergence(p, target, cost) for p in (start, run.laws[0]))
    assert after < 0.2 * before


def test_a_rule_that_steps_on_residuals_says_that_it_cannot():
    for rule in (ng.optim.SampleSpace(), ng.optim.Natural()):
        with pytest.raises(ValueError, match="Transport has more to it"):
            ng.train(Hypergrid(3), rule, objective=Transport(), updates=1, progress=False)


def test_it_needs_a_grid():
    with pytest.raises(ValueError, match="needs an enumerated environment on a grid"):
        ng.train(
            oracles.SHORTCUTS,
            ng.optim.Euclidean(),
            objective=Transport(),
            updates=1,
            progress=False,
        )


@pytest.mark.parametrize("name", ["weight", "blur"])
def test_numbers_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        Transport(**{name: 0.0})
