"""Replay: the buffer, paths drawn backwards, the sources that use them, and the teacher."""

import json
from collections import OrderedDict
from dataclasses import replace
from math import log

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from oracles import Path, as_trajectories, explore, float64, make_flow, random_tables
from scipy import stats

import natgfn as ng
from natgfn import NatgfnError
from natgfn.algorithm import Algorithm, advance, discovered, stack_seeds
from natgfn.envs import DeceptiveGrid
from natgfn.optim import AbstractRule, Adam
from natgfn.policies import Flow, Network, Tabular, Uniform, UniformPolicy
from natgfn.sampling import Buffer, OnPolicy, UniformMixture, log_probs, rollback, rollout
from natgfn.sources import (
    AbstractSource,
    Fresh,
    Known,
    Mixed,
    Perturbed,
    Replay,
    Teacher,
    revisit,
    teacher_reward,
)
from natgfn.sources.replay import PRIORITIES
from natgfn.training import checkpoint

WORLDS = oracles.WORLDS | {"deceptive": DeceptiveGrid(4)}


def same(one, other) -> bool:
    """Whether all arrays are equal, bit by bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


# The buffer.

NUMBERED = explore(oracles.WORLDS["grid"]).space
"""States are numbers."""


def contents(buffer: Buffer, first: int = 0) -> list[tuple[int, float]]:
    """What it holds, oldest first, counted from the number of the first object."""
    stamps = np.asarray(buffer.stamps)
    order = [i for i in np.argsort(stamps) if stamps[i] > 0]
    return [(int(buffer.objects[i]) - first, float(buffer.priorities[i])) for i in order]


def insert_plainly(kept: OrderedDict, capacity: int, objects, priorities) -> None:
    for item, priority in zip(objects.tolist(), priorities.tolist(), strict=True):
        if item in kept:
            del kept[item]
        elif len(kept) == capacity:
            kept.popitem(last=False)
        kept[item] = priority


@pytest.mark.parametrize(
    ("capacity", "batches", "compiled"),
    [(1, 20, True), (4, 20, True), (7, 20, True), (20, 20, True), (4, 4, False)],
)
def test_inserting_is_that_of_an_ordered_map(capacity, batches, compiled):
    """Repeats within and between batches, batches larger than the buffer, room to spare."""
    rng, kept = np.random.default_rng(capacity), OrderedDict()
    insert = jax.jit(Buffer.insert) if compiled else Buffer.insert
    buffer = Buffer.empty(NUMBERED, capacity)
    for _ in range(batches):
        objects = rng.integers(0, 12, 6).astype(np.int32)
        priorities = rng.normal(size=6).astype(np.float32)
        buffer = insert(buffer, jnp.asarray(objects), jnp.asarray(priorities))
        insert_plainly(kept, capacity, objects, priorities)
        assert contents(buffer) == list(kept.items())
        empty = np.asarray(buffer.stamps) == 0
        assert not np.asarray(buffer.priorities)[empty].any()


def filled(capacity: int, priorities: list[float]) -> Buffer:
    """Objects 10, 11, ... with these priorities, in this order."""
    objects = 10 + jnp.arange(len(priorities))
    return Buffer.empty(NUMBERED, capacity).insert(objects, jnp.array(priorities))


@pytest.mark.parametrize(
    ("capacity", "priorities", "order"),
    [
        (5, [0.5, 3.0, -1.0, 3.0, 0.5], [11, 13, 10, 14, 12]),
        (9, [0.5, 3.0, -1.0, 3.0], [11, 13, 10, 12]),
        (4, [0.0, 0.0, 0.0], [10, 11, 12]),
        (6, [-np.inf, 1.0, -np.inf], [11, 10, 12]),
        (3, [2.0], [10]),
    ],
    ids=["full", "room", "equal", "impossible", "single"],
)
def test_objects_are_drawn_by_rank(capacity, priorities, order):
    """The older of two equals first; empty places never, whatever the priorities."""
    num, count = 20_000, len(priorities)
    drawn = np.asarray(filled(capacity, priorities).draw(num, key=jax.random.key(3)))
    assert set(drawn.tolist()) <= set(order)
    weights = 1 / (0.01 * count + np.arange(count))
    observed = [np.sum(drawn == item) for item in order]
    if count > 1:
        assert stats.chisquare(observed, num * weights / weights.sum()).pvalue > 1e-3


def test_an_object_that_comes_again_has_its_new_rank():
    buffer = filled(3, [2.0, 1.0]).insert(jnp.array([10]), jnp.array([0.0]))
    drawn = np.asarray(buffer.draw(2_000, key=jax.random.key(0)))
    assert np.mean(drawn == 11) == pytest.approx(51 / 52, abs=0.02)


# Paths drawn backwards.


def places(world, paths) -> np.ndarray:
    """Where each trajectory is in `world.paths`."""
    place = {path: i for i, path in enumerate(world.paths)}
    states, actions = np.asarray(paths.states), np.asarray(paths.actions)
    found = [
        Path(tuple(states[: n + 1, i].tolist()), tuple(actions[:n, i].tolist()))
        for i, n in enumerate(np.asarray(paths.lengths))
    ]
    return np.array([place[path] for path in found])


def check_whole(world, paths) -> np.ndarray:
    """They are trajectories of the world, padded as they should be; returns their places."""
    found = places(world, paths)
    expected = as_trajectories(world, found)
    for name in ("states", "actions", "live"):
        np.testing.assert_array_equal(getattr(paths, name), getattr(expected, name))
    return found


draw_back = eqx.filter_jit(rollback)


@pytest.mark.parametrize(
    ("name", "learned"),
    [*((name, True) for name in WORLDS), ("shortcuts", False), ("deceptive", False)],
)
def test_paths_to_given_objects_have_the_law_of_the_backward_policy(name, learned):
    """By a chi-square test over all trajectories to all objects."""
    world, each = explore(WORLDS[name]), 1024
    tables = random_tables(world, 5, scale=0.5)
    log_pb = tables.log_pb if learned else oracles.uniform_backward(world)
    flow = make_flow(tables, learned=learned)
    ends = np.tile(world.space.num_inner + np.arange(world.space.num_terminal), each)
    paths = draw_back(world.space, flow.backward, jnp.asarray(ends), key=jax.random.key(2))
    np.testing.assert_array_equal(paths.last, ends)
    found = check_whole(world, paths)

    expected = each * np.exp(world.sum_arrived(log_pb))
    assert expected.min() > 5
    counts = np.bincount(found, minlength=len(world.paths))
    if (freedom := len(world.paths) - world.space.num_terminal) == 0:
        np.testing.assert_array_equal(counts, each)
    else:
        statistic = np.sum((counts - expected) ** 2 / expected)
        assert stats.chi2.sf(statistic, freedom) > 1e-3

    probs = eqx.filter_jit(log_probs)(world.space, flow, paths)
    np.testing.assert_allclose(probs.backward, world.sum_arrived(log_pb)[found], atol=1e-5)
    assert np.isfinite(probs.forward).all()


def test_paths_backwards_need_no_enumeration():
    """Several arrays a state; onto a wall there is one way, and no stop."""
    env = DeceptiveGrid(5)
    objects = env.objects()
    paths = draw_back(env, UniformPolicy(env.num_actions), objects, key=jax.random.key(0))
    paths = jax.tree.map(np.asarray, paths)
    assert not np.any(paths.states.cell[0])
    assert not np.any(paths.states.stopped[0])
    assert all(map(np.array_equal, paths.last, objects))
    step = jax.jit(jax.vmap(env.step))
    mask = jax.jit(jax.vmap(env.forward_mask))
    for t, (actions, live) in enumerate(zip(paths.actions, paths.live, strict=True)):
        before, after = (jax.tree.map(lambda x, i=i: x[i], paths.states) for i in (t, t + 1))
        allowed = np.take_along_axis(np.asarray(mask(before)), np.asarray(actions)[:, None], 1)
        assert np.all(allowed[live])
        for found, moved, still in zip(after, step(before, actions), before, strict=True):
            np.testing.assert_array_equal(found[live], np.asarray(moved)[live])
            np.testing.assert_array_equal(found[~live], still[~live])


@pytest.mark.parametrize("bias", [3.0, -3.0], ids=["short", "long"])
@pytest.mark.parametrize("name", ["grid", "shortcuts", "deceptive"])
@float64
def test_rollouts_end_early_without_a_trace(name, bias):
    """As a plain loop over the same uniform numbers, whether or not the longest is there."""
    world = explore(WORLDS[name])
    logits = random_tables(world, 6).forward
    logits[:, 2] += bias  # it stops, or leads from the source of the DAG to an object
    logits[0, 2] += 2 * bias
    cdf = np.cumsum(np.exp(oracles.log_softmax(logits, world.forward_valid)), axis=1)
    key, num, times = jax.random.key(4), 40, world.space.max_steps
    policy = Tabular(jnp.asarray(logits))
    paths = eqx.filter_jit(rollout)(world.space, policy, OnPolicy(), num, key=key)
    uniforms = np.asarray(jax.random.uniform(key, (times, num)))
    expected = []
    for i in range(num):
        state, states, actions = 0, [0], []
        while state < world.space.num_inner:
            actions.append(int(np.searchsorted(cdf[state], uniforms[len(actions), i], "right")))
            state = int(world.space.child[state, actions[-1]])
            states.append(state)
        expected.append(world.paths.index(Path(tuple(states), tuple(actions))))
    assert check_whole(world, paths).tolist() == expected
    assert bias < 0 or max(paths.lengths) < times


# Replay.


@pytest.fixture(scope="module")
def small():
    return explore(WORLDS["deceptive"])


def networks(world, seed: int = 0) -> Flow:
    forward = Network(width=4, depth=1)(world.space, key=jax.random.key(seed))
    return Flow(forward, Uniform().backward(world.space), jnp.array(0.3))


@eqx.filter_jit
def turn(algorithm: Algorithm, flow, memory, step, key):
    """What a source draws, and what it remembers."""
    source, env = algorithm.source, algorithm.env
    paths = source.draw(env, flow, algorithm.proposal, algorithm.batch, memory, step, key=key)
    batch = algorithm.evaluate(flow, paths)
    return batch.paths, batch.residuals, source.learn(env, batch, memory, step)


def test_replay_takes_turns(small):
    """New batches fill the buffer; the others come from it, and leave it alone."""
    env, flow, law = small.space, networks(small), UniformMixture(0.5)
    source = Replay(capacity=5)
    algorithm = Algorithm(env, Adam(), proposal=law, source=source, batch=8)
    memory, kept = source.init(env, flow, key=jax.random.key(0)), OrderedDict()
    replayed = []
    for step in range(8):
        key = jax.random.key(step)
        paths, _, after = turn(algorithm, flow, memory, jnp.array(step), key)
        check_whole(small, paths)
        objects = np.asarray(paths.last) - env.num_inner
        if step % 2 == 0:
            fresh = eqx.filter_jit(rollout)(env, flow.forward, law, 8, key=key)
            assert same(paths, fresh)
            insert_plainly(kept, 5, objects, env.log_rewards[objects].astype(np.float32))
        else:
            assert set(objects.tolist()) <= kept.keys()
            assert same(after, memory)
            replayed.append(objects)
        assert contents(after, env.num_inner) == list(kept.items())
        memory = after
    assert len(set(map(tuple, replayed))) > 1


def test_a_mixed_batch_is_new_and_known_in_halves(small):
    """What is new fills the buffer; what is known comes from what was new before."""
    env, flow, law = small.space, networks(small), UniformMixture(0.5)
    source = Mixed(Replay(capacity=5))
    algorithm = Algorithm(env, Adam(), proposal=law, source=source, batch=8)
    memory, kept = source.init(env, flow, key=jax.random.key(0)), OrderedDict()
    for step in range(4):
        paths, _, after = turn(algorithm, flow, memory, jnp.array(step), jax.random.key(step))
        check_whole(small, paths)
        new, known = (np.asarray(paths.last) - env.num_inner).reshape(2, 8)
        if step == 0:
            assert new.tolist() != known.tolist()  # there is nothing to remember: all are new
        else:
            assert set(known.tolist()) <= kept.keys()
        insert_plainly(kept, 5, new, env.log_rewards[new].astype(np.float32))
        assert contents(after, env.num_inner) == list(kept.items())
        memory = after


def test_half_of_a_batch_leads_to_known_objects(small):
    env, flow, law = small.space, networks(small), UniformMixture(0.5)
    objects = env.num_inner + np.array([1, 4, 6], np.int32)
    algorithm = Algorithm(env, Adam(), proposal=law, source=Known(objects), batch=41)
    paths, _, memory = turn(algorithm, flow, None, jnp.array(0), jax.random.key(0))
    check_whole(small, paths)
    new, known = np.split(np.asarray(paths.last), [21])
    assert set(known.tolist()) == set(objects.tolist())
    assert not set(new.tolist()) <= set(objects.tolist())
    assert memory is None
    np.testing.assert_allclose(weights_seen(small, Known(objects)), 101, rtol=1e-5)


def test_without_objects_all_of_the_list_are_known_each_as_often_as_the_others(small):
    env, flow = small.space, networks(small)
    algorithm = Algorithm(env, Adam(), source=Known(), batch=2_000)
    paths, _, _ = turn(algorithm, flow, None, jnp.array(0), jax.random.key(0))
    check_whole(small, paths)
    known = np.asarray(paths.last)[1_000:] - env.num_inner
    counts = np.bincount(known, minlength=env.num_terminal)
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_batch_of_one_is_new(small):
    env, flow = small.space, networks(small)
    one = Known().draw(env, flow, OnPolicy(), 1, None, jnp.array(0), key=jax.random.key(0))
    check_whole(small, one)
    assert one.lengths.shape == (1,)


def test_all_objects_are_known_only_where_they_are_listed():
    env = ng.envs.Hypergrid(side=4)
    with pytest.raises(ValueError, match="Known without objects needs every state, and Hypergrid"):
        ng.train(env, source=Known(), enumerate=False, updates=1, progress=False)


class Spy(AbstractRule):
    r"""Moves $\log Z$ by the mean weights of the batch, and nothing else."""

    def transform(self):
        def update(updates, state, params=None, *, batch, **extra):
            still = jax.tree.map(jnp.zeros_like, updates)
            seen = batch.omega.mean() + 100 * batch.weights.mean()
            return eqx.tree_at(lambda flow: flow.log_z, still, seen), state

        return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)

    def context(self, env, flow, batch):
        return {"batch": batch}


def weights_seen(small, source) -> np.ndarray:
    """101 for each update whose weights are all one."""
    laws = {"proposal": UniformMixture(0.5), "reference": OnPolicy()}
    algorithm = Algorithm(small.space, Spy(), source=source, batch=8, **laws)
    states = stack_seeds(lambda seed: algorithm.init(networks(small), seed), [0])
    seen = [float(states.flow.log_z[0])]
    for _ in range(4):
        states, _ = advance(algorithm, states, jnp.array(1))
        seen.append(float(states.flow.log_z[0]))
    return np.diff(seen)


def test_a_replayed_batch_counts_as_on_policy(small):
    moves = weights_seen(small, Replay())
    np.testing.assert_allclose(moves[1::2], 101, rtol=1e-5)
    assert np.all(np.abs(moves[::2] - 101) > 0.1)


def test_batches_of_a_perturbed_policy_count_as_on_policy(small):
    np.testing.assert_allclose(weights_seen(small, Perturbed(Fresh())), 101, rtol=1e-5)


@pytest.mark.slow
def test_mixed_batches_count_as_on_policy(small):
    np.testing.assert_allclose(weights_seen(small, Mixed()), 101, rtol=1e-5)


def test_noise_is_in_proportion_to_each_array_of_the_forward_policy(small):
    flow = networks(small)
    perturb = eqx.filter_jit(eqx.filter_vmap(Perturbed(noise=0.3).perturb, in_axes=(None, 0)))
    moved = perturb(flow, jax.random.split(jax.random.key(0), 400))
    arrays = (eqx.filter(f.forward, eqx.is_inexact_array) for f in (flow, moved))
    for before, after in zip(*map(jax.tree.leaves, arrays), strict=True):
        step = (np.asarray(after) - np.asarray(before)) / np.sqrt(
            np.mean(np.asarray(before) ** 2) + 1e-30
        )
        expected = 0.3 if np.any(before) else 0.0
        np.testing.assert_allclose(step.std(axis=0), expected, rtol=0.25)
        assert np.abs(step.mean(axis=0)).max() < 0.1
    rest = eqx.tree_at(lambda f: f.forward, moved, None)
    known = eqx.tree_at(lambda f: f.forward, flow, None)
    for before, after in zip(*map(jax.tree.leaves, (known, rest)), strict=True):
        assert np.all(np.asarray(after) == np.asarray(before))


@pytest.mark.slow
@pytest.mark.parametrize("source", [Fresh(), Replay(capacity=5)], ids=["fresh", "replay"])
def test_a_perturbed_policy_draws_as_its_source_would(small, source):
    """What another policy would have drawn, and without noise what this one would."""
    flow, key = networks(small), jax.random.key(3)
    plain = Algorithm(small.space, Adam(), source=source, batch=8)
    memory = source.init(small.space, flow, key=key)
    for noise in (0.0, 2.0):
        noisy = replace(plain, source=Perturbed(source, noise))
        there = noisy.source.perturb(flow, key)
        paths, _, after = turn(noisy, flow, memory, jnp.array(0), key)
        expected, _, _ = turn(plain, there, memory, jnp.array(0), key)
        assert same(paths, expected)
        assert same(paths, turn(plain, flow, memory, jnp.array(0), key)[0]) == (noise == 0)
    if after is not None:
        assert contents(after)


def test_bad_noise_is_refused():
    with pytest.raises(ValueError, match="noise must be zero or positive and finite, got -1"):
        Perturbed(noise=-1.0)


def test_priorities_are_those_of_the_last_visit(small):
    env, flow = small.space, networks(small)
    flow = eqx.tree_at(lambda f: f.log_z, flow, jnp.array(-6.9))  # residuals of both signs
    algorithm = Algorithm(env, Adam(), batch=8)

    @jax.jit
    def remember(paths):
        residuals, empty = algorithm.evaluate(flow, paths).residuals, Buffer.empty(env, 20)
        kept = [Replay(p).remember(env, paths.last, residuals, empty) for p in PRIORITIES]
        return residuals, kept

    paths = as_trajectories(small, np.array([0, 7, 3, 0, 20, 7, 11, 30]))
    residuals, buffers = remember(paths)
    objects = (np.asarray(paths.last) - env.num_inner).tolist()
    deltas = dict(zip(objects, np.asarray(residuals, float).tolist(), strict=True))
    assert min(deltas.values()) < 0 < max(deltas.values())
    value = {
        "reward": lambda x: env.log_rewards[x],
        "loss": lambda x: deltas[x] ** 2,
        "teacher": lambda x: kims_reward(-deltas[x]),
        "none": lambda _: 0.0,
    }
    for priority, buffer in zip(PRIORITIES, buffers, strict=True):
        expected = {x: value[priority](x) for x in deltas}
        assert dict(contents(buffer, env.num_inner)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": "rewards"}, "one of reward, loss, teacher, none, got 'rewards'"),
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
    ],
)
def test_replay_says_what_it_was_given(options, message):
    with pytest.raises(ValueError, match=message) as caught:
        Replay(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("side", "capacity"), [(16, 25), (4, 1), (2, 1)])
def test_the_buffer_holds_a_tenth_of_the_objects(side, capacity):
    env = ng.statespace.enumerate_states(ng.envs.Hypergrid(side=side))
    flow = Flow(Tabular.forward(env), Uniform().backward(env), jnp.array(0.0))
    assert Replay().init(env, flow, key=jax.random.key(0)).objects.shape == (capacity,)
    assert Replay(capacity=7).init(env, flow, key=jax.random.key(0)).objects.shape == (7,)


# The teacher.


def kims_reward(delta: float) -> float:
    """As in the code of Kim et al., whose residual has the opposite sign."""
    return log(1 + 1e-3 + (1 + 19 * (delta > 0)) * delta**2)


@float64
def test_the_teacher_is_rewarded_for_what_the_student_lacks():
    deltas = np.array([-30.0, -2.0, -1e-3, 0.0, 1e-3, 2.0, 30.0])
    expected = [kims_reward(-delta) for delta in deltas]
    np.testing.assert_allclose(teacher_reward(jnp.asarray(deltas)), expected, rtol=1e-12)


TEACHER = Teacher(policy=Network(width=4, depth=1), replay=Replay("teacher", capacity=5))


@pytest.mark.slow
def test_a_teacher_takes_every_fourth_turn(small):
    """Student, buffer, teacher, buffer; what is new goes into the buffer."""
    env, flow, law = small.space, networks(small), UniformMixture(0.5)
    algorithm = Algorithm(env, Adam(), proposal=law, source=TEACHER, batch=8)
    memory = TEACHER.init(env, flow, key=jax.random.key(9))
    draw, again = eqx.filter_jit(rollout), eqx.filter_jit(revisit)
    drawn = []
    for step in range(8):
        key = jax.random.key(5)
        paths, _, after = turn(algorithm, flow, memory, jnp.array(step), key)
        expected = (
            lambda k=key: draw(env, flow.forward, law, 8, key=k),
            lambda k=key, m=memory: again(env, flow, m.buffer, 8, key=k),
            lambda k=key, m=memory: draw(env, m.teacher.flow.forward, OnPolicy(), 8, key=k),
            lambda k=key, m=memory: again(env, flow, m.buffer, 8, key=k),
        )[step % 4]()
        assert same(paths, expected)
        assert same(after.buffer, memory.buffer) == (step % 2 == 1)
        assert not same(after.teacher.flow.forward, memory.teacher.flow.forward)
        memory = after
        drawn.append(np.asarray(paths.states).tobytes())
    assert len(set(drawn[:3])) == 3


@pytest.mark.slow
def test_a_student_learns_from_paths_alone(small):
    """Other teachers change its update only where they drew the paths."""
    algorithm = Algorithm(small.space, Adam(), source=TEACHER, batch=8)
    step = eqx.filter_jit(algorithm.step)
    state = algorithm.init(networks(small), 0)
    other = eqx.tree_at(
        lambda s: s.memory.teacher.flow,
        state,
        Flow(networks(small, 7).forward, state.memory.teacher.flow.backward, jnp.array(2.0)),
    )
    for turns in range(3):
        (state, _), (other, _) = step(state), step(other)
        # The buffer is the student's alone so far, so its batch is the same too.
        assert same(state.flow, other.flow) == (turns < 2)
        assert not same(state.memory.teacher.flow.log_z, other.memory.teacher.flow.log_z)


@pytest.mark.slow
def test_a_step_that_spoils_the_teacher_is_rejected_as_a_whole(small):
    """Its gradient is not a number: nothing is learnt, and nothing remembered."""
    algorithm = Algorithm(small.space, Adam(), source=TEACHER, batch=8)
    state = algorithm.init(networks(small), 0)
    state = eqx.tree_at(lambda s: s.memory.teacher.flow.log_z, state, jnp.array(jnp.inf))
    step = eqx.filter_jit(algorithm.step)
    for _ in range(3):
        after, info = step(state)
        assert not info.accepted
        assert same((after.flow, after.memory), (state.flow, state.memory))
        assert algorithm.source.is_fresh(after.memory, after.step)  # the buffer is empty
        state = after
    assert int(state.rejected) == 3


@pytest.mark.slow
@float64
def test_a_teacher_learns_by_clipped_adam_on_its_own_balance(small):
    """Written out over the numbers of the states, for two updates of moments."""
    env, flow = small.space, networks(small)
    algorithm = Algorithm(env, Adam(), source=TEACHER, batch=6)
    memory = TEACHER.init(env, flow, key=jax.random.key(9))
    memory = eqx.tree_at(lambda m: m.teacher.flow.log_z, memory, jnp.array(-4.0))
    log_pb = small.sum_arrived(oracles.uniform_backward(small))
    taken = np.zeros((len(small.paths), *small.forward_valid.shape))
    for i, path in enumerate(small.paths):
        taken[i, path.states[:-1], path.actions] = 1
    parts, static = eqx.partition(memory.teacher.flow.forward, eqx.is_inexact_array)
    params, optimisers = [parts, memory.teacher.flow.log_z], [optax.adam(1e-3), optax.adam(0.1)]
    moments = [o.init(p) for o, p in zip(optimisers, params, strict=True)]

    @eqx.filter_jit
    def learn(memory, step, paths):
        batch = algorithm.evaluate(flow, paths)
        return batch.residuals, TEACHER.learn(env, batch, memory, step)

    @jax.jit
    @jax.grad
    def gradient_of(params, taken, target):
        logits = jax.vmap(eqx.combine(params[0], static))(jnp.arange(env.num_inner))
        log_pf = jax.nn.log_softmax(logits)  # every action is valid here
        return jnp.mean((params[1] + jnp.sum(taken * log_pf, (1, 2)) - target) ** 2)

    assert small.forward_valid.all()
    for step, picked in enumerate(([0, 5, 9, 9, 14, 2], [30, 8, 1, 17, 25, 12])):
        paths = as_trajectories(small, np.array(picked))
        residuals, memory = learn(memory, jnp.array(step), paths)
        reward = np.array([kims_reward(-float(delta)) for delta in residuals])
        gradient = gradient_of(params, taken[picked], np.log(reward + 1e-8) + log_pb[picked])
        norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        assert norm > 1
        for i, optimiser in enumerate(optimisers):
            clipped = jax.tree.map(lambda g, norm=norm: g / norm, gradient[i])
            update, moments[i] = optimiser.update(clipped, moments[i])
            params[i] = optax.apply_updates(params[i], update)
        found = [
            eqx.filter(memory.teacher.flow.forward, eqx.is_inexact_array),
            memory.teacher.flow.log_z,
        ]
        for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(found), strict=True):
            np.testing.assert_allclose(theirs, mine, rtol=1e-9)


# Whole runs.


class Witness(AbstractSource):
    """Keeps every object that was drawn."""

    def init(self, env, flow, *, key):
        return jnp.full((10, 4), -1)

    def draw(self, env, flow, proposal, num, memory, step, *, key):
        return rollout(env, flow.forward, proposal, num, key=key)

    def learn(self, env, batch, memory, step):
        return memory.at[step].set(batch.paths.last - env.num_inner)


def test_modes_discovered_are_the_best_objects_that_were_drawn():
    env = ng.envs.Hypergrid(side=4, floor=0.5)
    space = explore(env).space
    algorithm = Algorithm(space, Adam(), source=Witness(), batch=4).with_traced_numbers()
    flow = Flow(Tabular.forward(space), Uniform().backward(space), jnp.array(0.0))
    states = stack_seeds(lambda seed: algorithm.init(flow, seed), [0, 1, 2])
    assert discovered(space, states).tolist() == [0, 0, 0]
    states, _ = advance(algorithm, states, jnp.array(10))
    best = np.flatnonzero(space.log_rewards == space.log_rewards.max())
    seen = [set(drawn.ravel().tolist()) for drawn in np.asarray(states.memory)]
    expected = [len(objects & set(best.tolist())) for objects in seen]
    assert 0 < sum(expected) < 3 * len(best)
    assert discovered(space, states).tolist() == expected
    for visited, objects in zip(np.asarray(states.visited), seen, strict=True):
        assert set(np.flatnonzero(visited).tolist()) == objects


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [Replay(), replace(TEACHER, rule=Adam()), Perturbed()],
    ids=["replay", "teacher", "perturbed"],
)
def test_a_run_that_stopped_goes_on_as_if_it_had_not(tmp_path, source):
    """The buffer, and the teacher with its moments, are part of a checkpoint."""

    def train(out, **options):
        ng.train(
            DeceptiveGrid(4),
            Adam(),
            policy=Network(width=4, depth=1),
            source=source,
            batch=4,
            updates=15,
            evaluate_every=5,
            out=tmp_path / out,
            progress=False,
            **options,
        )

    def arrays(out):
        with np.load(tmp_path / out / "checkpoint.npz") as file:
            return {name: file[name].tobytes() for name in file.files}

    def lines(out):
        found = map(json.loads, (tmp_path / out / "record.jsonl").read_text().splitlines()[1:])
        return [{k: v for k, v in line.items() if k != "seconds"} for line in found]

    train("whole")
    saves, save = iter(range(2)), checkpoint.save

    def failing(*args, **options):
        if next(saves, None) is None:
            raise NatgfnError("stopped here")
        save(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", failing)
        with pytest.raises(NatgfnError, match="stopped here"):
            train("stopped")
    assert arrays("stopped") != arrays("whole")
    train("stopped", resume=True)
    assert arrays("stopped") == arrays("whole")
    assert lines("stopped") == lines("whole")
