"""The deceptive grid: which cells are modes in which arithmetic, and walls that end."""

from fractions import Fraction
from itertools import product
from math import comb, log

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import explore, float64

import natgfn as ng
from natgfn import statespace
from natgfn.check import check_environment
from natgfn.envs import DeceptiveGrid
from natgfn.envs.grid import GridState
from natgfn.policies import Network, Tabular, forward_probs
from natgfn.statespace import enumerate_states

SMALL = {
    "line": DeceptiveGrid(5, 1),
    "tiny": DeceptiveGrid(2, 2),
    "grid": DeceptiveGrid(5, 2),
    "cube": DeceptiveGrid(4, 3),
}


@pytest.fixture(scope="module", params=SMALL)
def env(request):
    return SMALL[request.param]


@pytest.fixture(scope="module", params=[128, pytest.param(256, marks=pytest.mark.slow)])
def large(request):
    return enumerate_states(DeceptiveGrid(request.param))


# The reward.


def rewards_by_fractions(side: int, dims: int) -> dict[tuple, float]:
    """As the paper prints it, in rational numbers."""

    def distance(s):
        return abs(Fraction(s, side - 1) - Fraction(1, 2))

    def reward(cell):
        outside = all(distance(s) > Fraction(1, 10) for s in cell)
        mode = all(Fraction(3, 10) < distance(s) < Fraction(2, 5) for s in cell)
        low = Fraction(1, 10)
        return float(Fraction(1, 100_000) + low - low * outside + 2 * mode)

    return {cell: reward(cell) for cell in product(range(side), repeat=dims)}


def rewards_by_floats(side: int, dims: int) -> dict[tuple, float]:
    """As its code computes it, in Python's double precision."""

    def reward(cell):
        u = [abs(s / (side - 1) * 2 - 1) for s in cell]
        outside, mode = all(x > 0.2 for x in u), all(0.6 < x < 0.8 for x in u)
        return 1e-5 + 0.1 - 0.1 * outside + 2.0 * mode

    return {cell: reward(cell) for cell in product(range(side), repeat=dims)}


def rewards(env: DeceptiveGrid) -> dict[tuple, float]:
    objects = env.objects()
    values = np.exp(jax.jit(jax.vmap(env.log_reward))(objects))
    return dict(zip(map(tuple, np.asarray(objects.cell).tolist()), values.tolist(), strict=True))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(
    ("side", "dims"),
    [(2, 1), (6, 1), (256, 1), (8, 2), (11, 2), (16, 2), (21, 2), (41, 2), (11, 3), (4, 4)],
)
@float64
def test_reward_equals_brute_force(side, dims, exact):
    """Cells on a threshold (6, 11, 16, 21, 41, 256 have some) are where the two differ."""
    found = rewards(DeceptiveGrid(side, dims, exact=exact))
    expected = (rewards_by_fractions if exact else rewards_by_floats)(side, dims)
    assert found.keys() == {c for c in expected if c.count(side - 1) <= 1}
    for cell, reward in found.items():
        assert reward == pytest.approx(expected[cell], rel=1e-11), cell


@pytest.mark.parametrize(
    ("side", "exact", "low", "high", "count"),
    [
        (128, False, range(13, 26), range(102, 115), 676),
        (128, True, range(13, 26), range(102, 115), 676),
        (256, False, range(26, 51), range(204, 230), 2601),
        (256, True, range(26, 51), range(205, 230), 2500),
    ],
)
def test_modes_are_the_published_ones(side, exact, low, high, count):
    """676 at 128 in any arithmetic; at 256 the published 2601 in float64, 2500 in truth.

    In single precision and compiled, as in training: the table must not be computed there.
    """
    table = rewards(DeceptiveGrid(side, exact=exact))
    highest = max(table.values())
    best = {cell for cell, reward in table.items() if reward == highest}
    assert best == set(product([*low, *high], repeat=2))
    assert len(best) == count


def test_large_grids_have_the_published_levels_and_expected_log_reward(large):
    """Without the far corner, which has the lowest reward and cannot be reached."""
    side = large.env.side
    _, counts = np.unique(np.round(large.log_rewards, 9), return_counts=True)
    assert counts.tolist() == {128: [9727, 5980, 676], 256: [39014, 23920, 2601]}[side]
    reward = np.exp(large.log_rewards)
    z = {128: 1950.16384, 256: 7594.65536}[side] - 1e-5
    assert reward.sum() == pytest.approx(z, rel=1e-12)
    expected = {128: -0.22613, 256: -0.25107}[side]
    assert reward @ large.log_rewards / z == pytest.approx(expected, abs=5e-6)


def test_single_precision_keeps_the_digits_of_the_floor():
    desert = GridState(jnp.array([0, 0]), jnp.array(True))
    for floor in (1e-5, 3e-6):
        found = float(DeceptiveGrid(8, floor=floor).log_reward(desert))
        assert found == pytest.approx(log(floor), abs=2e-6)


# The graph.


def test_environment_keeps_its_promises(env):
    findings = check_environment(env)
    assert len(findings) == 13
    assert all(finding.ok for finding in findings), [f for f in findings if not f.ok]
    assert max(len(path.actions) for path in explore(env).paths) == env.max_steps


def test_backward_paths_into_every_object_sum_to_one(env):
    world = explore(env)
    mask = np.asarray(jax.vmap(env.backward_mask)(world.space.states))
    with np.errstate(divide="ignore"):
        log_pb = np.log(mask / np.maximum(mask.sum(1, keepdims=True), 1))
    mass = np.exp(world.sum_arrived(log_pb)) @ world.ends
    np.testing.assert_allclose(mass, 1, rtol=1e-12)


def test_masks_of_every_state(env):
    """All moves and stop until a wall is touched; onto a wall there is one way."""
    space = explore(env).space
    forward = np.asarray(jax.vmap(env.forward_mask)(space.states)).tolist()
    backward = np.asarray(jax.vmap(env.backward_mask)(space.states)).tolist()
    terminal = np.asarray(jax.vmap(env.is_terminal)(space.states)).tolist()
    found = {}
    for i, (cell, stopped) in enumerate(zip(*map(np.ndarray.tolist, space.states), strict=True)):
        found[*cell, stopped] = forward[i], backward[i], terminal[i]
    expected, last = {}, env.side - 1
    for cell in product(range(env.side), repeat=env.dims):
        nothing, everything = [False] * env.num_actions, [True] * env.num_actions
        if cell.count(last) == 1:
            expected[*cell, True] = nothing, [s == last for s in cell] + [False], True
        elif cell.count(last) == 0:
            expected[*cell, False] = everything, [s > 0 for s in cell] + [False], False
            expected[*cell, True] = nothing, [False] * env.dims + [True], True
    assert found == expected


def test_objects_are_the_ends_of_trajectories_each_once(env):
    objects = env.objects()
    listed = [(*cell, True) for cell in np.asarray(objects.cell).tolist()]
    assert np.asarray(objects.stopped).all()
    assert sorted(listed) == sorted({states[-1] for states, _ in oracles.walk(env)})


def test_terminal_law_of_the_uniform_policy_counts_paths(large):
    """Stopping at a cell takes $|s| + 1$ choices of three, a wall $|s|$, and paths keep off it."""
    last = large.env.side - 1
    with jax.enable_x64(True):
        pf = forward_probs(large, Tabular.forward(large))
        _, law = eqx.filter_jit(statespace.occupancy)(large, pf)
        law = np.asarray(law)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    cells = np.asarray(large.terminals.cell)

    def probability(i, j):
        if last in (i, j):
            return comb(i + j - 1, min(i, j)) / 3 ** (i + j)
        return comb(i + j, i) / 3 ** (i + j + 1)

    expected = [probability(i, j) for i, j in cells.tolist()]
    np.testing.assert_allclose(law, expected, rtol=1e-10)
    modes = large.log_rewards == large.log_rewards.max()
    hit = {128: 1.0e-5, 256: 2.1e-10}[large.env.side]
    assert law[modes].sum() == pytest.approx(hit, rel=0.05)


def test_terminal_law_of_a_network_sums_to_one(large):
    """A network that seldom stops, so that the far cells have their share."""
    with jax.enable_x64(True):
        network = Network()(large, key=jax.random.key(0))
        network = eqx.tree_at(lambda n: n.rest[-1].bias, network, jnp.array([0.0, 0.0, -5.0]))
        _, law = eqx.filter_jit(lambda n: statespace.occupancy(large, forward_probs(large, n)))(
            network
        )
        law = np.asarray(law)
    assert law.sum() == pytest.approx(1, abs=1e-12)
    walls = np.any(np.asarray(large.terminals.cell) == large.env.side - 1, axis=1)
    assert 0.05 < law[walls].sum() < 0.95


# The rest of the interface.


def test_observing_shows_one_hot_coordinates():
    env = DeceptiveGrid(4, 3)
    seen = env.observe(GridState(jnp.array([2, 0, 3]), jnp.array(True)))
    assert jnp.issubdtype(seen.dtype, jnp.floating)
    np.testing.assert_array_equal(seen, [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1])


def test_coordinates_lie_within_the_sides(env):
    assert isinstance(env, ng.envs.OnGrid)
    assert env.sides == (env.side,) * env.dims
    objects = env.objects()
    found = np.asarray(jax.vmap(env.coordinates)(objects))
    np.testing.assert_array_equal(found, objects.cell)
    np.testing.assert_array_equal(found.max(0), np.array(env.sides) - 1)


def test_nothing_in_it_can_be_trained():
    assert not jax.tree.leaves(eqx.filter(DeceptiveGrid(), eqx.is_array))


def test_defaults_are_the_smaller_task_of_the_paper():
    env = DeceptiveGrid()
    assert (env.side, env.dims, env.floor, env.exact) == (128, 2, 1e-5, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 1}, "side must be at least 2, got 1"),
        ({"dims": 0}, "dims must be at least 1, got 0"),
        ({"floor": 0.0}, "floor must be positive and finite, got 0.0"),
        ({"floor": float("inf")}, "floor must be positive and finite, got inf"),
        ({"floor": float("nan")}, "floor must be positive and finite, got nan"),
    ],
)
def test_constructor_says_what_it_was_given(options, message):
    with pytest.raises(ValueError, match=message):
        DeceptiveGrid(**options)
