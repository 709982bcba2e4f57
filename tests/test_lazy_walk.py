"""The lazy random walk: who can be where, when, and what it is worth."""

import functools
import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import float64

import natgfn as ng
from natgfn import NatgfnError
from natgfn.check import check_environment
from natgfn.envs import Gaussians, LazyWalk, Rings
from natgfn.policies import Constant, backward_table
from natgfn.statespace import (
    StateSpace,
    backward_mass,
    constructive_flow,
    enumerate_states,
    exact_residuals,
    log_path_counts,
    occupancy,
)
from natgfn.training import describe, setup_from


@functools.cache
def walk(target) -> StateSpace:
    """The walk of the paper."""
    return enumerate_states(LazyWalk(target=target))


@pytest.mark.parametrize(("reach", "steps", "dims"), [(2, 3, 1), (2, 3, 2), (1, 4, 2), (1, 2, 3)])
def test_a_walk_reaches_all_cells_that_are_near_enough(reach, steps, dims):
    env = LazyWalk(reach, steps, dims, Rings())
    space = enumerate_states(env)
    found = {
        (*(cell - reach).tolist(), int(time))
        for cell, time in zip(*map(np.asarray, space.states), strict=True)
    }
    cells = product(range(-reach, reach + 1), repeat=dims)
    expected = {
        (*cell, time) for cell in cells for time in range(steps + 1) if sum(map(abs, cell)) <= time
    }
    assert found == expected
    assert space.graded
    assert space.max_steps == steps


@pytest.mark.parametrize(
    "env",
    [
        LazyWalk(2, 3),
        pytest.param(LazyWalk(2, 3, 1, Rings()), marks=pytest.mark.slow),
        pytest.param(LazyWalk(1, 2, 3), marks=pytest.mark.slow),
    ],
)
def test_a_walk_is_sound_and_its_backward_policy_normalised(env):
    assert all(finding.ok for finding in check_environment(env))


@pytest.mark.parametrize(
    ("target", "modes", "expected"), [(Gaussians(), 29, -1.0431), (Rings(), 36, -0.4101)]
)
def test_targets_have_the_modes_and_expected_log_reward_of_the_paper(target, modes, expected):
    """The paper has -1.0440 and -0.4101."""
    space = walk(target)
    assert space.num_terminal == 17**2
    assert space.modes.sum() == modes
    mean = np.exp(space.log_target) @ space.log_rewards
    assert mean == pytest.approx(expected, abs=5e-5)


def test_modes_of_rings_are_whole_orbits():
    space = walk(Rings())
    squares = ((np.asarray(space.terminals.cell) - 8) ** 2).sum(axis=1)
    on, off = set(squares[space.modes].tolist()), set(squares[~space.modes].tolist())
    assert on == {4, 16, 17, 34, 36, 37}
    assert not on & off


def test_modes_of_gaussians_are_the_best_cells():
    space = walk(Gaussians())
    assert space.log_rewards[space.modes].min() >= space.log_rewards[~space.modes].max() - 1e-12


@float64
def test_rewards_are_those_of_the_formulas():
    def rewards(target):
        space = walk(target)
        cells = map(tuple, (np.asarray(space.terminals.cell) - 8).tolist())
        return dict(zip(cells, np.exp(space.log_rewards), strict=True))

    rings, gaussians = rewards(Rings()), rewards(Gaussians(count=4, width=1.5))
    for x, y in [(0, 0), (3, -4), (8, 8), (-2, 0)]:
        by_ring = [math.exp(-((math.hypot(x, y) - r) ** 2) / (2 * 0.48**2)) for r in (2, 4, 6)]
        assert rings[x, y] == pytest.approx(1e-3 + sum(by_ring), rel=1e-12)
        centres = [(5, 0), (0, 5), (-5, 0), (0, -5)]
        squares = [(x - a) ** 2 + (y - b) ** 2 for a, b in centres]
        by_centre = [math.exp(-s / (2 * 1.5**2)) for s in squares]
        assert gaussians[x, y] == pytest.approx(1e-3 + sum(by_centre), rel=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LazyWalk(reach=0), "reach must be at least 1, got 0"),
        (lambda: LazyWalk(steps=0), "steps must be at least 1, got 0"),
        (lambda: Rings(radii=()), r"radii must be positive and finite, got \(\)"),
        (lambda: Rings(width=0.0), "width must be positive and finite, got 0.0"),
        (lambda: Gaussians(floor=-1.0), "floor must be positive and finite, got -1.0"),
        (lambda: enumerate_states(LazyWalk(dims=1)), "Gaussians need 2 dimensions or more, got 1"),
    ],
)
def test_bad_walks_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_walk_can_be_configured_and_described():
    settings = {"env": {"name": "lazy_walk", "reach": 3, "target": {"name": "rings"}}}
    settings["env"]["target"]["radii"] = [1, 2.5]
    env = setup_from(settings).env
    assert env == LazyWalk(3, target=Rings((1.0, 2.5)))
    assert setup_from({"env": describe(env)}).env == env
    with pytest.raises(NatgfnError, match=r"env\.target"):
        setup_from({"env": {"name": "LazyWalk", "target": "ring"}})


@pytest.mark.slow
def test_the_default_rule_learns_a_walk():
    env = LazyWalk(3, 6, target=Rings((2.0,)))
    run = ng.train(env, updates=300, batch=64, progress=False)
    assert run.metrics["tv"][-1] < 0.02 < run.metrics["tv"][0]
    assert run.metrics["modes"][-1] == run.space.modes.sum() == 12
    assert run.metrics["discovered"][-1] == 12


@float64
def test_a_constant_backward_policy_moves_the_optimum():
    """To R h, with h the probability that it loses nothing on the way to the origin."""
    space = enumerate_states(LazyWalk(2, 3, target=Rings((1.0, 2.0))))

    @jax.jit
    def optimum():
        table = backward_table(space, Constant().backward(space))
        log_flow, log_pf = constructive_flow(space, table, jnp.asarray(space.log_rewards))
        loss = exact_residuals(space, log_pf, table, log_flow[0]).loss
        mass, counts = backward_mass(space, table), log_path_counts(space)
        return table, mass, counts, loss, occupancy(space, jnp.exp(log_pf))[1]

    table, mass, counts, loss, law = map(np.asarray, optimum())
    assert set(table.ravel().tolist()) == {-np.log(5), -np.inf}
    h, walks = mass[space.num_inner :], np.exp(counts)[space.num_inner :]
    np.testing.assert_allclose(h, walks / 5**3, rtol=1e-12)
    assert loss < 1e-20
    expected = np.exp(space.log_rewards) * h
    np.testing.assert_allclose(law, expected / expected.sum(), rtol=1e-10)


@pytest.mark.slow
def test_training_ends_at_the_optimum_of_its_backward_policy():
    env = LazyWalk(2, 3, target=Rings((1.0, 2.0)))
    run = ng.train(env, backward=Constant(), updates=400, batch=64, progress=False)
    space = run.space
    h = np.asarray(backward_mass(space, backward_table(space, Constant().backward(space))))
    biased = np.exp(space.log_rewards) * h[space.num_inner :]
    biased /= biased.sum()
    assert abs(run.laws[0] - biased).sum() / 2 < 5e-3
    assert run.metrics["tv"][-1] > 0.1
    assert run.configuration["backward"] == {"name": "Constant"}
