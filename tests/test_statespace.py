"""Enumeration and exact dynamic programming, against sums over all trajectories."""

from dataclasses import replace
from itertools import pairwise
from math import comb

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import SHORTCUTS, ZERO_REWARD, Dag, explore, float64, random_dag, random_tables

import natgfn as ng
from natgfn import statespace
from natgfn.statespace import TooManyStates, enumerate_states
from natgfn.statespace.enumerate import _SMALL_BLOCKS, _chunks
from natgfn.statespace.enumerate import _padded as padded
from natgfn.statespace.rows import Numbers, pack, unpack

occupancy = eqx.filter_jit(statespace.occupancy)
timed_occupancy = eqx.filter_jit(statespace.timed_occupancy)
backward_mass = eqx.filter_jit(statespace.backward_mass)
constructive_flow = eqx.filter_jit(statespace.constructive_flow)
exact_residuals = eqx.filter_jit(statespace.exact_residuals)
log_path_counts = eqx.filter_jit(statespace.log_path_counts)


# Enumeration.


def edges(world):
    return {
        (s, a, t)
        for path in world.paths
        for s, a, t in zip(path.states, path.actions, path.states[1:], strict=False)
    }


def test_enumeration_finds_every_state_and_edge_once(world):
    space = world.space
    reached = {s for path in world.paths for s in path.states}
    assert reached == set(range(space.num_states))
    assert {path.states[-1] for path in world.paths} == set(range(space.num_inner, len(reached)))
    found = {(s, a, int(t)) for (s, a), t in np.ndenumerate(space.child) if t >= 0}
    assert found == edges(world)
    entering = {(int(s), a, t) for (t, a), s in np.ndenumerate(space.parent) if s >= 0}
    assert entering == edges(world)


def test_states_are_numbered_in_topological_order_with_terminals_last(world):
    for s, _, t in edges(world):
        assert s < t
        assert s < world.space.num_inner
    assert np.all(np.diff(world.space.level[: world.space.num_inner]) >= 0)


def test_level_is_the_longest_path_from_the_source(world):
    longest = np.zeros(world.space.num_states, int)
    for path in world.paths:
        for t, state in enumerate(path.states):
            longest[state] = max(longest[state], t)
    np.testing.assert_array_equal(world.space.level, longest)
    assert world.space.max_steps == longest.max()


def test_graded_means_that_level_and_time_agree(world):
    agree = all(
        world.space.level[state] == t for path in world.paths for t, state in enumerate(path.states)
    )
    assert world.space.graded == agree
    assert world.space.graded == (world.env is not SHORTCUTS)


def test_a_tree_is_where_one_path_leads_to_each_inner_state(world):
    counts = oracles.path_counts(world)[: world.space.num_inner]
    assert world.space.is_tree == bool((counts == 1).all())


def test_arrivals_are_the_edges_into_each_state(world):
    space = world.space
    past_the_end = space.num_inner * space.num_actions
    listed = set()
    for first, block in zip((0, space.num_inner), space.arrivals, strict=True):
        for (row, _), edge in np.ndenumerate(block):
            if edge != past_the_end:
                listed.add((int(edge) // space.num_actions, int(edge) % space.num_actions,
                            first + row))  # fmt: skip
        filled = (block != past_the_end).sum(1)
        assert filled.max() == block.shape[1] or first == 0
    assert listed == edges(world)


def test_an_enumerated_space_is_the_same_environment(world):
    """Its steps, masks and rewards are those of the environment that was enumerated."""
    space, env = world.space, world.env

    def compare(number):
        state = jax.tree.map(lambda x: jnp.asarray(x)[number], space.states)
        return (
            (space.forward_mask(number), env.forward_mask(state)),
            (space.backward_mask(number), env.backward_mask(state)),
            (space.is_terminal(number), env.is_terminal(state)),
            (space.observe(number), env.observe(state)),
        )

    for ours, theirs in jax.jit(jax.vmap(compare))(jnp.arange(space.num_states)):
        np.testing.assert_array_equal(ours, theirs)
    for path, log_reward in zip(world.paths, world.log_rewards, strict=True):
        assert space.log_rewards[path.states[-1] - space.num_inner] == log_reward
    for s, a, t in sorted(edges(world))[:3]:
        assert int(space.step(jnp.array(s), a)) == t
        assert int(space.undo(jnp.array(t), a)) == s
    assert enumerate_states(space) is space


def test_log_z_and_target_are_the_normalised_rewards(world):
    rewards = np.exp(world.space.log_rewards)
    assert world.space.log_z == pytest.approx(np.log(rewards.sum()), rel=1e-14)
    np.testing.assert_allclose(np.exp(world.space.log_target), rewards / rewards.sum(), rtol=1e-13)


def test_rewards_are_kept_in_float64():
    space = explore(ng.envs.Hypergrid(side=3, floor=0.1)).space
    assert space.log_rewards.dtype == np.float64
    assert np.exp(space.log_rewards).min() == pytest.approx(0.1, rel=1e-14)


def test_triangles_on_six_nodes_have_32767_inner_and_32768_terminal_states():
    space = enumerate_states(ng.envs.Triangles(nodes=6))
    assert (space.num_inner, space.num_terminal) == (32767, 32768)
    assert space.is_tree
    assert space.graded
    assert space.max_steps == 15
    # The mean number of triangles over all graphs is 20 / 8.
    assert (space.log_rewards / 0.2).mean() == pytest.approx(2.5)
    uniform = jnp.full((space.num_inner, 2), 0.5)
    visits, law = occupancy(space, uniform)
    np.testing.assert_allclose(law, 2.0**-15, rtol=1e-5)
    np.testing.assert_allclose(visits, 0.5 ** space.level[: space.num_inner], rtol=1e-5)


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (Dag(((1, 2), (0, 2)), (1.0,), 3), {}, "cycle"),
        (Dag(((1, 3), (2, 3), (1, -1)), (1.0,), 3), {}, "cycle"),
        (Dag(((1, 2), (-1, -1)), (1.0,), 2), {}, "no action is valid in 1"),
        (Dag(((1, 2), (3, -1), (3, -1)), (1.0,), 2), {}, "action 0 leads from two states to 3"),
        (ng.envs.Hypergrid(side=8), {"max_states": 100}, "more than 100 states"),
        (Dag(((1, 2),), (1.0, np.nan), 1), {}, "log_reward of 2 is nan"),
        (Dag(((1, 2),), (np.inf, 1.0), 1), {}, "log_reward of 1 is inf"),
        (Dag(((1, 2),), (0.0, 0.0), 1), {}, "every terminal state has reward zero"),
    ],
    ids=["cycle", "late cycle", "dead end", "merge", "too many", "nan", "inf", "no reward"],
)
def test_enumeration_refuses_what_is_not_a_construction(env, options, message):
    with pytest.raises(ValueError, match=message):
        enumerate_states(env, **options)


def test_a_list_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    """However many states are allowed. (Found by `make faults`.)"""
    monkeypatch.setattr("natgfn.memory.available", lambda: 2.0**20)
    with pytest.raises(ValueError, match=r"^a list of 16,\d* states of Hypergrid, or more, would"):
        enumerate_states(ng.envs.Hypergrid(side=100), max_states=10**9)


def test_max_states_is_the_number_of_states_that_still_passes():
    assert enumerate_states(ng.envs.Hypergrid(side=3), max_states=18).num_states == 18
    with pytest.raises(ValueError, match="more than 17 states"):
        enumerate_states(ng.envs.Hypergrid(side=3), max_states=17)


@pytest.mark.parametrize("children", [1, 7, 64])
def test_a_space_does_not_depend_on_how_many_states_are_expanded_together(world, children):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("natgfn.statespace.enumerate._CHILDREN", children)
        found = enumerate_states(world.env)
    jax.tree.map(np.testing.assert_array_equal, found, world.space)


@pytest.mark.parametrize("seed", range(3))
def test_a_space_does_not_depend_on_how_many_states_a_block_is_computed_for(monkeypatch, seed):
    env = random_dag(seed, inner=40, terminals=40)
    whole = enumerate_states(env)
    monkeypatch.setattr("natgfn.statespace.enumerate._SMALL_BLOCKS", 0)
    jax.tree.map(np.testing.assert_array_equal, enumerate_states(env), whole)


def chain(inner: int) -> Dag:
    """Go on, or stop."""
    table = tuple((node + 1 if node + 1 < inner else -1, inner + node) for node in range(inner))
    return Dag(table, (1.0,) * inner, inner)


def test_a_long_chain_is_expanded_in_blocks_of_its_own_size(monkeypatch):
    sizes = []

    def spy(function, states, count, size):
        sizes.append(size)
        return padded(function, states, count, size)

    monkeypatch.setattr("natgfn.statespace.enumerate._padded", spy)
    space = enumerate_states(chain(300))
    assert (space.num_inner, space.num_terminal, space.max_steps) == (300, 300, 300)
    np.testing.assert_array_equal(space.child[:-1, 0], np.arange(1, 300))
    np.testing.assert_array_equal(space.child[:, 1], np.arange(300, 600))
    walk = sizes[:301]
    assert set(walk[_SMALL_BLOCKS:]) == {32}
    assert len(set(walk)) == 2


class Endless(Dag):
    """One action, which always leads to a new state."""

    def step(self, state, action):
        return state + 1

    def forward_mask(self, state):
        return jnp.array([True])

    def is_terminal(self, state):
        return jnp.array(False)


def test_trajectories_longer_than_max_steps_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="it takes 6 steps to 6, but max_steps is 5: raise it"):
        enumerate_states(Endless(((1,),), (1.0,), 5))
    # A shortcut leads everywhere within two steps, but there is a way of three.
    detour = ((1, 2), (2, -1), (3, -1))
    assert enumerate_states(Dag(detour, (1.0,), 3)).max_steps == 3
    with pytest.raises(ValueError, match="it takes 3 steps to 3, but max_steps is 2"):
        enumerate_states(Dag(detour, (1.0,), 2))


def test_a_terminal_is_told_how_far_a_long_enumeration_is(monkeypatch, capsys):
    clock = iter(range(1_000))
    monkeypatch.setattr("natgfn.statespace.enumerate.time.monotonic", lambda: next(clock))
    enumerate_states(chain(5))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    enumerate_states(chain(5))
    said = capsys.readouterr().err
    assert said.startswith("\rlisting states: ")
    assert said.endswith("listing states: 10 so far\n")
    assert said.count("\n") == 1


def test_a_hopeless_enumeration_ends_within_a_block_of_its_limit(monkeypatch):
    """Whole levels would not do: that of the limit has 792 cells, and so 7,128 children."""
    seen = []

    class Spy(Numbers):
        def of(self, rows):
            numbers = super().of(rows)
            seen.append((len(rows), len(self)))
            return numbers

    monkeypatch.setattr("natgfn.statespace.enumerate.Numbers", Spy)
    monkeypatch.setattr("natgfn.statespace.enumerate._CHILDREN", 90)
    with pytest.raises(TooManyStates, match=r"more than 2,000 states: .* raise max_states$"):
        enumerate_states(ng.envs.Hypergrid(side=20, dims=8), max_states=2000)
    children, found = zip(*seen, strict=True)
    assert max(children) <= 90
    assert found[-2] <= 2000 < found[-1]


@given(st.lists(st.lists(st.tuples(*[st.integers(0, 3)] * 2), max_size=40), max_size=6))
def test_rows_are_numbered_as_a_dictionary_would(blocks):
    """But for the order in which the new rows of one block get their numbers."""
    numbers, known = Numbers(2), {}
    for block in blocks:
        found = numbers.of(np.array(block, np.uint64).reshape(-1, 2))
        fresh = dict(zip(block, found.tolist(), strict=True))
        assert all(known.get(row, number) == number for row, number in fresh.items())
        known |= fresh
        assert [known[row] for row in block] == found.tolist()
        assert sorted(known.values()) == list(range(len(numbers)))
        assert {tuple(row): i for i, row in enumerate(numbers.rows.tolist())} == known


def test_rows_that_share_a_place_are_told_apart(monkeypatch):
    monkeypatch.setattr("natgfn.statespace.rows._hash", lambda rows: rows[:, 0] * 0)
    numbers, rows = Numbers(1), np.array([[5], [3], [5], [4], [3]], np.uint64)
    found = numbers.of(rows)
    np.testing.assert_array_equal(numbers.rows[found], rows)
    assert len(numbers) == 3
    np.testing.assert_array_equal(numbers.of(rows), found)


def test_packed_states_come_back(world):
    states = jax.tree.map(np.asarray, world.space.states)
    back = unpack(world.env.init(), pack(states))
    jax.tree.map(np.testing.assert_array_equal, back, states)
    assert [x.dtype for x in jax.tree.leaves(back)] == [x.dtype for x in jax.tree.leaves(states)]


class FloatStates(Dag):
    def init(self):
        return jnp.array(0.0)


def test_states_must_be_made_of_integers():
    with pytest.raises(ValueError, match="integer or boolean"):
        enumerate_states(FloatStates(((1,),), (1.0,), 1))


# Blocks of the dynamic programme.


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=12))
def test_blocks_cover_every_level_after_the_one_before(sizes):
    """Run the schedule symbolically: a state is right if all lower levels were when computed."""
    sizes = np.array([1, *sizes])
    size, chunks = _chunks(sizes)
    total, ends = sizes.sum(), np.cumsum(sizes)
    starts = ends - sizes
    level = np.repeat(np.arange(len(sizes)), sizes)
    assert np.all(chunks >= 0)
    assert np.all(chunks + size <= total)
    for order, before in ((chunks, lambda k: starts[k]), (chunks[::-1], lambda k: total - ends[k])):
        right = np.zeros(total, bool)
        for start in order:
            block = slice(start, start + size)
            ready = right if order is chunks else right[::-1]
            sofar = np.argmin(ready) if not ready.all() else total
            right[block] = [sofar >= before(k) for k in level[block]]
        assert right.all()


@float64
def test_results_do_not_depend_on_the_size_of_blocks():
    world = explore(SHORTCUTS)
    space, tables = world.space, random_tables(world)
    log_pf, log_pb = jnp.asarray(tables.log_pf), jnp.asarray(tables.log_pb)
    level_sizes = np.bincount(space.level[: space.num_inner])
    first = np.concatenate([[0], np.cumsum(level_sizes)])

    @eqx.filter_jit
    def everything(space):
        return (
            statespace.occupancy(space, jnp.exp(log_pf)),
            statespace.log_path_counts(space),
            statespace.constructive_flow(space, log_pb, jnp.asarray(space.log_rewards)),
            statespace.exact_residuals(space, log_pf, log_pb, jnp.array(0.3)),
        )

    expected = everything(space)
    for size in {1, 2, 4} - {space.chunk_size}:
        starts = [np.arange(a, b, size) for a, b in pairwise(first)]
        chunks = np.minimum(np.concatenate(starts), space.num_inner - size).astype(np.int32)
        found = everything(replace(space, chunk_size=size, chunks=chunks))
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14), found, expected
        )


# Dynamic programming.


@float64
def test_occupancy_equals_the_sum_over_all_trajectories(world):
    """`eq:occupancy_main`, and the terminal law."""
    tables = random_tables(world, 1)
    visits, law = occupancy(world.space, jnp.asarray(tables.pf))
    np.testing.assert_allclose(visits, oracles.occupancy(world, tables.pf), rtol=1e-12)
    np.testing.assert_allclose(law, oracles.terminal_law(world, tables.pf), rtol=1e-12)


@float64
def test_timed_occupancy_equals_each_time_slice_of_all_trajectories(world):
    tables = random_tables(world, 2)
    timed = np.asarray(timed_occupancy(world.space, jnp.asarray(tables.pf)))
    np.testing.assert_allclose(timed, oracles.timed_occupancy(world, tables.pf), atol=1e-14)
    np.testing.assert_allclose(timed.sum(0), oracles.occupancy(world, tables.pf), rtol=1e-12)


@float64
def test_path_counts_are_those_of_all_prefixes(world):
    counts = np.exp(log_path_counts(world.space))
    np.testing.assert_allclose(counts, oracles.path_counts(world), rtol=1e-12)


@float64
def test_path_counts_of_the_grid_are_binomial_coefficients():
    space = explore(ng.envs.Hypergrid(side=4)).space
    counts = np.exp(log_path_counts(space))
    cells = np.asarray(space.states.cell)
    np.testing.assert_allclose(counts, [comb(x + y, x) for x, y in cells], rtol=1e-12)


@float64
def test_backward_mass_is_one_wherever_the_backward_policy_is_normalised(world):
    mass = backward_mass(world.space, jnp.asarray(random_tables(world, 3).log_pb))
    np.testing.assert_allclose(mass, 1.0, rtol=1e-12)


@float64
def test_backward_mass_of_an_unnormalised_policy_is_its_sum_over_trajectories(world):
    """The hazard of a wrong backward policy: the number that betrays it is the right one."""
    rng = np.random.default_rng(4)
    log_pb = np.where(world.backward_valid, rng.normal(size=world.backward_valid.shape), -np.inf)
    mass = backward_mass(world.space, jnp.asarray(log_pb))
    expected = np.exp(world.sum_arrived(log_pb)) @ world.ends
    np.testing.assert_allclose(mass[world.space.num_inner :], expected, rtol=1e-12)


def check_realised(world, log_pb, log_rewards):
    """`eq:app_realizability_forward_policy` realises the target, for this backward policy."""
    log_flow, log_pf = constructive_flow(world.space, jnp.asarray(log_pb), jnp.asarray(log_rewards))
    pf = np.exp(log_pf)
    np.testing.assert_allclose(pf.sum(1), 1.0, rtol=1e-12)
    assert not pf[~world.forward_valid].any()
    rewards = np.exp(log_rewards)
    law = oracles.terminal_law(world, pf)
    assert np.abs(law - rewards / rewards.sum()).sum() / 2 < 1e-12
    assert float(log_flow[0]) == pytest.approx(np.log(rewards.sum()), abs=1e-12)


@float64
def test_constructive_flow_realises_any_target_with_any_backward_policy(world):
    rng = np.random.default_rng(5)
    for seed in range(4):
        log_rewards = 3 * rng.normal(size=world.space.num_terminal)
        if seed >= 2:
            log_rewards[rng.permutation(len(log_rewards))[: 1 + len(log_rewards) // 2]] = -np.inf
        check_realised(world, random_tables(world, seed, scale=2.0).log_pb, log_rewards)


@pytest.mark.parametrize("seed", range(3))
@float64
def test_dynamic_programming_is_right_on_random_graphs(seed):
    world = explore(random_dag(seed))
    tables = random_tables(world, seed)
    visits, law = occupancy(world.space, jnp.asarray(tables.pf))
    np.testing.assert_allclose(visits, oracles.occupancy(world, tables.pf), rtol=1e-12)
    np.testing.assert_allclose(law, oracles.terminal_law(world, tables.pf), rtol=1e-12)
    check_realised(world, tables.log_pb, world.space.log_rewards)


@float64
def test_constructive_flow_leaves_states_without_reward_a_policy():
    world = explore(ZERO_REWARD)
    check_realised(world, oracles.uniform_backward(world), world.space.log_rewards)
    only_one = np.array([-np.inf, 0.3, -np.inf])
    check_realised(world, oracles.uniform_backward(world), only_one)


@float64
def test_exact_residuals_equal_the_sums_over_all_trajectories(world):
    tables = random_tables(world, 6)
    found = exact_residuals(
        world.space, jnp.asarray(tables.log_pf), jnp.asarray(tables.log_pb), jnp.array(tables.log_z)
    )
    q, delta = oracles.path_probs(world, tables.pf), oracles.residuals(world, tables)
    assert float(found.loss) == pytest.approx(q @ delta**2, rel=1e-12)
    expected = oracles.exact_gradient(world, tables).reshape(tables.pf.shape)
    np.testing.assert_allclose(found.score_gradient, expected, atol=1e-12)


@float64
def test_exact_residuals_vanish_at_the_constructive_flow(world):
    log_pb = jnp.asarray(random_tables(world, 7).log_pb)
    log_flow, log_pf = constructive_flow(world.space, log_pb, jnp.asarray(world.space.log_rewards))
    found = exact_residuals(world.space, log_pf, log_pb, log_flow[0])
    assert float(found.loss) < 1e-25
    np.testing.assert_allclose(found.score_gradient, 0.0, atol=1e-13)
