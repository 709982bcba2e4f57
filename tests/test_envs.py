"""Environments: rewards in exact arithmetic, moves and their inverses."""

from fractions import Fraction
from itertools import combinations, product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import SHORTCUTS, float64, key, walk

import natgfn as ng
from natgfn.envs import Hypergrid, Triangles
from natgfn.envs.grid import GridState
from natgfn.envs.triangles import GraphState


def rewards_by_fractions(side: int, dims: int, outer_bound: bool) -> dict[tuple, Fraction]:
    """The reward as the paper prints it, in rational numbers."""

    def distance(s):
        return abs(Fraction(s, side - 1) - Fraction(1, 2))

    def plateau(s):
        inside = distance(s) < Fraction(1, 2) or not outer_bound
        return Fraction(1, 4) < distance(s) and inside

    def peak(s):
        return Fraction(3, 10) < distance(s) < Fraction(2, 5)

    return {
        cell: Fraction(1, 1000)
        + Fraction(1, 2) * all(map(plateau, cell))
        + 2 * all(map(peak, cell))
        for cell in product(range(side), repeat=dims)
    }


@float64
def rewards(env: Hypergrid) -> dict[tuple, float]:
    objects = env.objects()
    values = np.exp(jax.vmap(env.log_reward)(objects))
    return dict(zip(map(tuple, np.asarray(objects.cell).tolist()), values.tolist(), strict=True))


@pytest.mark.parametrize(
    ("side", "levels"),
    [(8, {2.501: 4, 0.001: 60}), (16, {2.501: 4, 0.501: 32, 0.001: 220})],
)
def test_hypergrid_has_the_reward_levels_of_the_paper(side, levels):
    values, counts = np.unique(
        np.round(list(rewards(Hypergrid(side)).values()), 9), return_counts=1
    )
    assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == levels


@pytest.mark.parametrize("outer_bound", [True, False])
@pytest.mark.parametrize(
    ("side", "dims"),
    [*((side, 1) for side in range(2, 42)), *((s, 2) for s in (5, 11, 16, 21)), (6, 3), (2, 4)],
)
def test_hypergrid_reward_equals_rational_arithmetic(side, dims, outer_bound):
    """Cells on a threshold (16, 21, 41 have some) are where floats would go wrong."""
    plateau, peak = Hypergrid(side, dims, outer_bound=outer_bound)._indicators()
    expected = rewards_by_fractions(side, dims, outer_bound)
    for cell, reward in expected.items():
        at = list(cell)
        found = Fraction(1, 1000) + Fraction(int(plateau[at].all()), 2) + 2 * int(peak[at].all())
        assert found == reward, cell


@pytest.mark.parametrize("outer_bound", [True, False])
@pytest.mark.parametrize(("side", "dims"), [(2, 1), (16, 2), (5, 3)])
def test_hypergrid_log_reward_is_made_of_its_indicators(side, dims, outer_bound):
    expected = rewards_by_fractions(side, dims, outer_bound)
    found = rewards(Hypergrid(side, dims, outer_bound=outer_bound))
    assert found.keys() == expected.keys()
    for cell, reward in expected.items():
        assert found[cell] == pytest.approx(float(reward), rel=1e-14), cell


@pytest.mark.parametrize(
    "env",
    [Hypergrid(4), Hypergrid(16), Hypergrid(5, 3, outer_bound=False), Hypergrid(20, 1, peak=0.0)],
)
def test_the_log_z_of_a_hypergrid_is_the_sum_over_its_cells(env):
    assert env.log_z == pytest.approx(np.log(sum(rewards(env).values())), rel=1e-12)


def test_the_log_z_of_a_hypergrid_that_nobody_can_list():
    """At H = 20, 8 coordinates are on the plateau and 4 of them on a peak."""
    assert Hypergrid(20, 8).log_z == pytest.approx(
        float(np.log(1e-3 * 20**8 + 0.5 * 8**8 + 2 * 4**8)), rel=1e-12
    )
    assert np.isfinite(Hypergrid(20, 1_000).log_z)


@pytest.mark.parametrize("outer_bound", [True, False])
def test_hypergrid_reward_is_symmetric_in_axes_and_reflections(outer_bound):
    table = rewards(Hypergrid(16, 2, outer_bound=outer_bound))
    grid = np.array([table[cell] for cell in product(range(16), repeat=2)]).reshape(16, 16)
    np.testing.assert_array_equal(grid, grid.T)
    np.testing.assert_array_equal(grid, grid[::-1])


def test_the_outer_bound_takes_the_plateau_off_the_rim():
    with_bound, without = rewards(Hypergrid(8)), rewards(Hypergrid(8, outer_bound=False))
    assert with_bound[0, 0] == pytest.approx(0.001)
    assert without[0, 0] == pytest.approx(0.501)


def test_the_hard_form_has_other_heights():
    easy, hard = (
        rewards(Hypergrid(20, floor=floor, plateau=plateau, peak=peak))
        for floor, plateau, peak in ((1e-3, 0.5, 2.0), (1e-4, 1.0, 3.0))
    )
    heights = {0.001: 1e-4, 0.501: 1.0001, 2.501: 4.0001}
    for cell, height in easy.items():
        assert hard[cell] == pytest.approx(heights[round(height, 3)], rel=1e-6)
    assert len(set(np.round(list(hard.values()), 6))) == 3
    with pytest.raises(ValueError, match="peak must be finite and not negative, got -1"):
        Hypergrid(peak=-1.0)


@pytest.mark.parametrize("nodes", [3, 4])
@float64
def test_triangle_counts_equal_those_of_the_adjacency_sets(nodes):
    env = Triangles(nodes, beta=0.3)
    pairs = list(combinations(range(nodes), 2))
    objects = env.objects()
    found = np.asarray(jax.vmap(env.count_triangles)(objects))
    log_reward = np.asarray(jax.vmap(env.log_reward)(objects))
    for graph in range(2 ** len(pairs)):
        present = {pair for k, pair in enumerate(pairs) if graph >> k & 1}
        triples = combinations(range(nodes), 3)
        count = sum(set(combinations(triple, 2)) <= present for triple in triples)
        assert found[graph] == count
        assert log_reward[graph] == pytest.approx(0.3 * count, rel=1e-14)


def test_a_complete_graph_has_n_choose_3_triangles():
    for nodes, count in ((3, 1), (5, 10), (6, 20), (8, 56)):
        env = Triangles(nodes)
        full = GraphState(jnp.array(env.num_edges), jnp.array(2**env.num_edges - 1))
        assert int(env.count_triangles(full)) == count


ENVS = {
    "grid": Hypergrid(side=3),
    "cube": Hypergrid(side=2, dims=3),
    "line": Hypergrid(side=5, dims=1),
    "triangles": Triangles(nodes=3),
    "shortcuts": SHORTCUTS,
}


@pytest.fixture(scope="module", params=ENVS)
def env(request):
    return ENVS[request.param]


def test_undo_inverts_step_and_the_masks_agree_along_every_trajectory(env):
    """Also: `max_steps` is the longest trajectory, and the source has no parent."""

    @jax.jit
    def look(state, action):
        child = env.step(state, action)
        return child, env.undo(child, action), env.backward_mask(child), env.forward_mask(child)

    structure = jax.tree.structure(env.init())
    shapes = [np.asarray(x) for x in jax.tree.leaves(env.init())]

    def unkey(values):
        ends = np.cumsum([x.size for x in shapes])[:-1]
        parts = np.split(np.array(values), ends)
        leaves = [
            jnp.asarray(p.reshape(x.shape), x.dtype) for p, x in zip(parts, shapes, strict=True)
        ]
        return jax.tree.unflatten(structure, leaves)

    paths = walk(env)
    edges = {
        (s, a, t)
        for states, actions in paths
        for s, a, t in zip(states, actions, states[1:], strict=False)
    }
    entering = {}
    for s, a, t in edges:
        child, parent, backward, forward = look(unkey(s), a)
        assert key(child) == t
        assert key(parent) == s
        entering.setdefault(t, [set(), np.asarray(backward)])[0].add(a)
        assert bool(env.is_terminal(child)) == (not forward.any())
    for actions, mask in entering.values():
        assert set(np.flatnonzero(mask).tolist()) == actions
    assert not np.asarray(env.backward_mask(env.init())).any()
    assert max(len(actions) for _, actions in paths) == env.max_steps


@pytest.mark.parametrize("name", ["grid", "cube", "triangles"])
def test_objects_lists_exactly_the_terminal_states(name):
    env = ENVS[name]
    objects = env.objects()
    count = len(jax.tree.leaves(objects)[0])
    listed = [key(jax.tree.map(lambda x, i=i: x[i], objects)) for i in range(count)]
    assert len(set(listed)) == count
    assert set(listed) == {states[-1] for states, _ in walk(env)}


@settings(max_examples=12)
@given(st.integers(2, 9), st.integers(1, 4), st.data())
def test_observing_a_grid_cell_loses_nothing(side, dims, data):
    env = Hypergrid(side, dims)
    cell = data.draw(st.lists(st.integers(0, side - 1), min_size=dims, max_size=dims))
    seen = np.asarray(env.observe(GridState(jnp.array(cell), jnp.array(False))))
    np.testing.assert_array_equal(seen.reshape(dims, side).argmax(1), cell)
    assert seen.sum() == dims


def test_observing_a_graph_shows_what_is_decided_and_what_is_there():
    seen = Triangles(3).observe(GraphState(jnp.array(2), jnp.array(0b10)))
    np.testing.assert_array_equal(seen, [1, 1, 0, 0, 1, 0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Hypergrid(side=1), "side must be at least 2, got 1"),
        (lambda: Hypergrid(dims=0), "dims must be at least 1, got 0"),
        (lambda: Hypergrid(floor=0.0), "floor must be positive"),
        (lambda: Hypergrid(floor=float("inf")), "floor must be positive and finite"),
        (lambda: Hypergrid(floor=float("nan")), "floor must be positive and finite"),
        (lambda: Triangles(nodes=2), "nodes must be at least 3, got 2"),
        (lambda: Triangles(nodes=9), "nodes must be from 3 to 8, got 9"),
        (lambda: Triangles(beta=float("nan")), "beta must be finite"),
    ],
)
def test_constructors_say_what_they_were_given(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_protocols_tell_apart_what_an_environment_can_do():
    assert isinstance(Hypergrid(), ng.envs.OnGrid)
    assert isinstance(Hypergrid(), ng.envs.ListsObjects)
    assert not isinstance(Triangles(), ng.envs.OnGrid)
    assert not isinstance(SHORTCUTS, ng.envs.ListsObjects)
