"""The routes to the occupancy: exact, sampled, factorised."""

import math
from collections import defaultdict
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import explore, float64, make_flow, on_batch, random_tables

import natgfn as ng
from benchmarks import factorised as benchmark
from natgfn import occupancy
from natgfn.envs import AbstractEnv
from natgfn.fisher import Fisher
from natgfn.occupancy import Exact, Factorised, Sampled, SampledScores
from natgfn.policies import Network, Tabular
from natgfn.sampling import UniformMixture
from natgfn.solvers import Block
from natgfn.statespace import enumerate_states

exact = eqx.filter_jit(Exact())
factorised = eqx.filter_jit(Factorised())
by_pairs = eqx.filter_jit(Factorised("pairs"))


@float64
def test_exact_occupancy_is_the_sum_over_all_trajectories(world):
    tables = random_tables(world, 1)
    found = exact(world.space, Tabular(jnp.asarray(tables.forward)))
    np.testing.assert_array_equal(found.states, np.arange(world.space.num_inner))
    np.testing.assert_allclose(found.weights, oracles.occupancy(world, tables.pf), rtol=1e-12)
    assert found.complete
    assert found.actions is None


def both_routes(space, flow, batch):
    """The natural step by the visited states of a tree, and by all of them."""
    h = batch.gradient().forward
    visited = Exact()(space, flow.forward, batch)
    everywhere = Exact()(space, flow.forward)
    steps = [
        Block().solve(Fisher(space, flow.forward, o), h, 0.01)[0] for o in (visited, everywhere)
    ]
    return visited, everywhere, steps


@float64
def test_on_a_tree_the_visited_states_give_the_same_step_as_all_of_them():
    """Also where two trajectories share states, or are the same."""
    world = explore(oracles.WORLDS["tree"])
    tables = random_tables(world, 2)
    for picked in ([1, 6], [3, 3], [4, 5]):
        visited, everywhere, steps = on_batch(
            world, make_flow(tables), both_routes, np.array(picked)
        )
        assert not visited.complete
        assert everywhere.complete
        total = np.bincount(visited.states, visited.weights, minlength=world.space.num_inner)
        seen = np.unique([world.paths[i].states[:-1] for i in picked])
        expected = oracles.occupancy(world, tables.pf)
        np.testing.assert_allclose(total[seen], expected[seen], rtol=1e-12)
        assert np.all(np.delete(total, seen) == 0)
        np.testing.assert_allclose(steps[0].logits, steps[1].logits, atol=1e-12)
        assert np.abs(steps[1].logits).max() > 0.1


@float64
def test_a_batch_larger_than_the_tree_uses_the_whole_of_it():
    world = explore(oracles.WORLDS["tree"])
    visited, everywhere, _ = on_batch(
        world, make_flow(random_tables(world, 2)), both_routes, np.arange(3)
    )
    assert visited.complete
    np.testing.assert_array_equal(visited.weights, everywhere.weights)


def visited_states(space, flow, batch):
    return Sampled()(space, flow.forward, batch), SampledScores()(space, flow.forward, batch)


@float64
def test_sampled_occupancy_weighs_each_visit_by_omega_over_n():
    world = explore(oracles.WORLDS["shortcuts"])
    tables, picked = random_tables(world, 3), np.array([0, 4, 4, 7])
    flow, law = make_flow(tables), UniformMixture(0.4)
    states_only, with_actions = on_batch(world, flow, visited_states, picked, proposal=law)
    uniform = world.forward_valid / world.forward_valid.sum(1, keepdims=True)
    mu = oracles.path_probs(world, 0.6 * tables.pf + 0.4 * uniform)
    omega = (oracles.path_probs(world, tables.pf) / mu)[picked]
    expected = np.zeros(tables.pf.shape)
    for weight, path in zip(omega, (world.paths[i] for i in picked), strict=True):
        np.add.at(expected, (list(path.states[:-1]), list(path.actions)), weight / len(picked))
    found = np.zeros((world.space.num_states, world.space.num_actions))
    np.add.at(found, (with_actions.states, with_actions.actions), with_actions.weights)
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-14)
    assert not found[len(expected) :].any()
    visits = np.bincount(states_only.states, states_only.weights, minlength=len(found))
    np.testing.assert_allclose(visits[: len(expected)], expected.sum(1), atol=1e-14)
    assert states_only.actions is None


# Factorised.


def factorised_by_hand(world, coordinates, pf):
    """Normalise each time slice, multiply its marginals, give it its mass back."""
    timed = oracles.timed_occupancy(world, pf)
    total = np.zeros(timed.shape[1])
    for slice_ in timed:
        mass = slice_.sum()
        if mass == 0:
            continue
        for s in range(len(total)):
            product = mass
            for axis in range(coordinates.shape[1]):
                same = coordinates[:, axis] == coordinates[s, axis]
                product *= slice_[same].sum() / mass
            total[s] += product
    return total


@pytest.mark.parametrize("dims", [2, 3])
@float64
def test_factorised_occupancy_is_the_product_of_marginals_at_each_time(dims):
    """`app:computational_regimes_detailed`; and it is not the exact one."""
    world = explore(ng.envs.Hypergrid(side=3 if dims == 2 else 2, dims=dims, floor=0.1))
    tables = random_tables(world, 4)
    found = factorised(world.space, Tabular(jnp.asarray(tables.forward)))
    cells = np.asarray(world.space.states.cell)[: world.space.num_inner]
    expected = factorised_by_hand(world, cells, tables.pf)
    np.testing.assert_allclose(found.weights, expected, rtol=1e-12)
    assert np.abs(expected - oracles.occupancy(world, tables.pf)).max() > 0.01
    assert found.complete


class TwoWalkers(AbstractEnv):
    """Two coordinates that move at once, each by 0 or 1, twice; then the walk is complete."""

    num_actions: int = 4
    max_steps: int = 2
    sides: tuple[int, ...] = (3, 3, 3)

    def init(self):
        return jnp.zeros(3, jnp.int32)

    def _move(self, action):
        return jnp.stack([jnp.asarray(action) & 1, jnp.asarray(action) >> 1, 1]).astype(jnp.int32)

    def step(self, state, action):
        return state + self._move(action)

    def undo(self, state, action):
        return state - self._move(action)

    def forward_mask(self, state):
        return jnp.full(4, state[2] < 2)

    def backward_mask(self, state):
        before = state - jnp.stack([self._move(a) for a in range(4)])
        return jnp.all((before >= 0) & (before[:, :2] <= before[:, 2:]).all(1)[:, None], axis=1)

    def is_terminal(self, state):
        return state[2] == 2

    def observe(self, state):
        return state.astype(float)

    def log_reward(self, state):
        return 0.3 * state[0] - 0.1 * state[1]

    def coordinates(self, state):
        # Time is one of them: coordinates must tell all states apart.
        return state


def independent_walkers():
    """A policy that is a product."""
    world = explore(TwoWalkers())
    rng = np.random.default_rng(5)
    state = np.asarray(world.space.states)[: world.space.num_inner]
    own = rng.normal(size=(2, 3, 3, 2))
    logits = np.stack(
        [
            own[0, state[:, 2], state[:, 0], a & 1] + own[1, state[:, 2], state[:, 1], a >> 1]
            for a in range(4)
        ],
        axis=1,
    )
    return world, logits


@float64
def test_factorised_occupancy_is_exact_where_the_joint_factorises():
    """Independent walkers: the policy is a product, and so is the joint at each time."""
    world, logits = independent_walkers()
    assert isinstance(world.env, ng.envs.OnGrid)
    policy = Tabular(jnp.asarray(logits))
    product, joint = factorised(world.space, policy), exact(world.space, policy)
    np.testing.assert_allclose(product.weights, joint.weights, rtol=1e-12)
    # A policy that ties the walkers together breaks it.
    tied = Tabular(jnp.asarray(logits + 2 * np.array([1, 0, 0, 1])))
    difference = factorised(world.space, tied).weights - exact(world.space, tied).weights
    assert np.abs(difference).max() > 0.01


def neighbours_by_hand(world, coordinates, pf):
    """Marginals of neighbouring coordinates, over those of the inner ones."""
    total = np.zeros(world.space.num_inner)
    for slice_ in oracles.timed_occupancy(world, pf):
        mass = slice_.sum()

        def share(s, axes, slice_=slice_, mass=mass):
            same = (coordinates[:, axes] == coordinates[s, axes]).all(axis=1)
            return slice_[same].sum() / mass

        for s in range(len(total)) if mass > 0 else ():
            pairs = [share(s, [d, d + 1]) for d in range(coordinates.shape[1] - 1)]
            inner = [share(s, [d]) for d in range(1, coordinates.shape[1] - 1)]
            total[s] += mass * np.prod(pairs) / np.prod(inner) if np.prod(inner) > 0 else 0
    return total


@float64
def test_pairs_of_coordinates_are_exact_in_two_dimensions_and_a_chain_in_three():
    found = {}
    for dims in (2, 3):
        world = explore(ng.envs.Hypergrid(side=3 if dims == 2 else 2, dims=dims, floor=0.1))
        tables = random_tables(world, 4)
        policy = Tabular(jnp.asarray(tables.forward))
        found[dims] = np.asarray(by_pairs(world.space, policy).weights)
        cells = np.asarray(world.space.states.cell)[: world.space.num_inner]
        expected = neighbours_by_hand(world, cells, tables.pf)
        np.testing.assert_allclose(found[dims], expected, rtol=1e-12)
        exactly = oracles.occupancy(world, tables.pf)
        assert np.allclose(found[dims], exactly, rtol=1e-12) == (dims == 2)


def messages_by_hand(world, coordinates, pf):
    """From time to time: the product of the marginals, moved on, and its marginals."""
    space = world.space
    mass, total = 1.0, np.zeros(space.num_inner)
    marginals = [{int(x): 1.0} for x in coordinates[0]]
    for _ in range(space.max_steps):
        product = np.array(
            [
                math.prod(m.get(int(x), 0.0) for m, x in zip(marginals, place, strict=True))
                for place in coordinates
            ]
        )
        total += mass * product
        after = [defaultdict(float) for _ in marginals]
        moved = 0.0
        for s, a in zip(*np.nonzero(np.asarray(space.child) >= 0), strict=True):
            to = space.child[s, a]
            if to < space.num_inner:
                moved += product[s] * pf[s, a]
                for d, x in enumerate(coordinates[to]):
                    after[d][int(x)] += product[s] * pf[s, a]
        if moved == 0:
            break
        mass *= moved / product.sum()
        marginals = [{x: value / moved for x, value in m.items()} for m in after]
    return total


@pytest.mark.slow
@pytest.mark.parametrize("block", [256, 5])
@pytest.mark.parametrize("name", ["grid", "cube", "walk"])
@float64
def test_messages_are_propagated_without_a_joint(name, block, monkeypatch):
    """Early stops, three dimensions, and a walk whose product leaves the reachable cells."""
    env = {
        "grid": ng.envs.Hypergrid(side=3, floor=0.1),
        "cube": ng.envs.Hypergrid(side=2, dims=3, floor=0.1),
        "walk": ng.envs.LazyWalk(2, 3),
    }[name]
    space = enumerate_states(env)
    rng = np.random.default_rng(6)
    logits = rng.normal(size=(space.num_inner, space.num_actions))
    pf = np.exp(oracles.log_softmax(logits, np.asarray(space.child) >= 0))
    inner = jax.tree.map(lambda x: x[: space.num_inner], space.states)
    places = np.asarray(jax.vmap(env.coordinates)(inner))
    monkeypatch.setattr(occupancy.factorised, "_BLOCK", block)
    route = eqx.filter_jit(lambda policy: Factorised("direct")(space, policy).weights)
    found = route(Tabular(jnp.asarray(logits)))
    world = SimpleNamespace(space=space)
    np.testing.assert_allclose(found, messages_by_hand(world, places, pf), rtol=1e-11, atol=1e-15)
    length = float(exact(space, Tabular(jnp.asarray(logits))).weights.sum())
    assert (found.sum() < 0.99 * length) == (name == "walk")


@float64
def test_messages_are_exact_where_the_joint_factorises():
    world, logits = independent_walkers()
    policy = Tabular(jnp.asarray(logits))
    found = eqx.filter_jit(Factorised("direct"))(world.space, policy)
    np.testing.assert_allclose(found.weights, exact(world.space, policy).weights, rtol=1e-12)


def test_messages_of_a_network_are_those_of_its_table():
    space = enumerate_states(ng.envs.LazyWalk(2, 3))
    network = Network(width=4, depth=1)(space, key=jax.random.key(0))
    table = Tabular(jax.vmap(network)(jnp.arange(space.num_inner)))
    route = eqx.filter_jit(Factorised("direct"))
    np.testing.assert_allclose(
        route(space, network).weights, route(space, table).weights, rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("route", ["joint", pytest.param("direct", marks=pytest.mark.slow)])
@float64
def test_a_table_needs_the_states_of_its_batch_only(route):
    """The same step as with all states; a state that two trajectories visit counts once."""
    world = explore(ng.envs.Hypergrid(side=5))
    tables = random_tables(world, 4)

    def steps(space, flow, batch):
        for given in (batch, None):
            found = Factorised(route)(space, flow.forward, given)
            fisher = Fisher(space, flow.forward, found)
            gradient = batch.gradient().forward
            yield ng.solvers.Block().solve(fisher, gradient, 1e-3)[0].logits, found.states

    picked = np.array([3, 40])
    (few, visited), (all_, states) = on_batch(
        world, make_flow(tables), lambda *args: tuple(steps(*args)), picked
    )
    assert len(visited) < len(states)
    np.testing.assert_allclose(few, all_, rtol=1e-9, atol=1e-12)


def test_an_unknown_route_is_refused():
    with pytest.raises(
        ValueError, match="route must be one of joint, pairs, direct, got 'beliefs'"
    ):
        Factorised("beliefs")


def test_factorised_needs_coordinates():
    space = explore(oracles.WORLDS["tree"]).space
    with pytest.raises(ValueError, match="needs coordinates, and Triangles has none"):
        Factorised()(space, Tabular.forward(space))


@pytest.mark.parametrize("route", [Exact(), Factorised()], ids=["exact", "factorised"])
def test_exact_routes_need_an_enumerated_environment(route):
    space = explore(oracles.WORLDS["grid"]).space
    with pytest.raises(ValueError, match=r"needs every state, and .* is not enumerated"):
        route(space.env, Tabular.forward(space))


@pytest.mark.slow
def test_the_benchmark_of_factorised_routes_prints_growth_and_judges_memory(monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "SIDES", {2: (3, 6)})
    monkeypatch.setattr(benchmark, "WALK", ng.envs.LazyWalk(1, 2))
    assert benchmark.bench_factorised() == 1  # so small a walk saves nothing
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * 3 + 1
    assert lines[0].startswith("hypergrid D=2, H=3, joint")
    assert lines[-1].endswith("MISSED")


def test_growth_is_a_power():
    assert benchmark._exponent([(2, 12.0), (4, 48.0), (8, 192.0)]) == pytest.approx(2.0)
