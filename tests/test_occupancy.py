"""The routes to the occupancy: exact, sampled, factorised."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from oracles import explore, float64, make_flow, on_batch, random_tables

import natgfn as ng
from natgfn.envs import AbstractEnv
from natgfn.fisher import Fisher
from natgfn.occupancy import Exact, Factorised, Sampled, SampledScores
from natgfn.policies import Tabular
from natgfn.sampling import UniformMixture
from natgfn.solvers import Block

exact = eqx.filter_jit(Exact())
factorised = eqx.filter_jit(Factorised())


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


@float64
def test_factorised_occupancy_is_exact_where_the_joint_factorises():
    """Independent walkers: the policy is a product, and so is the joint at each time."""
    world = explore(TwoWalkers())
    assert isinstance(world.env, ng.envs.OnGrid)
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
    policy = Tabular(jnp.asarray(logits))
    product, joint = factorised(world.space, policy), exact(world.space, policy)
    np.testing.assert_allclose(product.weights, joint.weights, rtol=1e-12)
    # A policy that ties the walkers together breaks it.
    tied = Tabular(jnp.asarray(logits + 2 * np.array([1, 0, 0, 1])))
    difference = factorised(world.space, tied).weights - exact(world.space, tied).weights
    assert np.abs(difference).max() > 0.01


def test_factorised_needs_coordinates():
    space = explore(oracles.WORLDS["tree"]).space
    with pytest.raises(ValueError, match="needs coordinates, and Triangles has none"):
        Factorised()(space, Tabular.forward(space))


@pytest.mark.parametrize("route", [Exact(), Factorised()], ids=["exact", "factorised"])
def test_exact_routes_need_an_enumerated_environment(route):
    space = explore(oracles.WORLDS["grid"]).space
    with pytest.raises(ValueError, match=r"needs every state; enumerate the environment first"):
        route(space.env, Tabular.forward(space))
