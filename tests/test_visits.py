"""Networks evaluated once on what counts: the same numbers as state by state, padding and all."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from oracles import Plainly, float64

from natgfn.envs import BitSequences, DeceptiveGrid, Hypergrid
from natgfn.objectives import TrajectoryBalance, evaluate
from natgfn.policies import LARGE, Flow, Network, Uniform, Visits, outputs
from natgfn.sampling import OnPolicy, UniformMixture, Weighting, rollback, rollout
from natgfn.statespace import enumerate_states

PLACES = {
    "few": lambda: enumerate_states(Hypergrid(side=6)),
    "many": lambda: enumerate_states(DeceptiveGrid(side=40)),
    "not listed": lambda: Hypergrid(side=5, dims=3),
    "observed": lambda: BitSequences(length=16, word=4),
}


def start(place, width=7):
    env = PLACES[place]()
    policy = Network(width, 2)(env, key=jax.random.key(0))
    policy = jax.tree.map(lambda x: 3 * x if eqx.is_inexact_array(x) else x, policy)
    return env, policy


@eqx.filter_jit
def draw(env, policy, num=40, keep=False):
    return rollout(env, policy, UniformMixture(0.3), num, key=jax.random.key(1), keep=keep)


@pytest.fixture(scope="module", params=PLACES)
def drawn(request):
    """An environment, a policy, its trajectories, and those of the plain policy."""
    env, policy = start(request.param)
    return request.param, env, policy, draw(env, policy, keep=True), draw(env, Plainly(policy))


def test_trajectories_are_those_of_the_plain_policy(drawn):
    place, env, policy, found, plain = drawn
    for one, other in zip(*(jax.tree.leaves(x.states) for x in (found, plain)), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(found.actions, plain.actions)

    # What was kept are the logits of the states, each distinct one once.
    live = np.asarray(plain.live).ravel()
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), plain.before)
    kept = np.asarray(outputs(policy, found.visits))[live]
    np.testing.assert_allclose(kept, np.asarray(jax.vmap(policy)(flat))[live], atol=1e-5)
    if place == "many":
        assert int(found.visits.count) == len(np.unique(np.asarray(flat)[live]))
    elif place == "few":
        assert found.visits.count == env.num_inner
    else:
        assert int(found.visits.count) == live.sum()


@pytest.mark.parametrize("place", ["few", "many"])
def test_trajectories_back_are_those_of_the_plain_policy(place):
    env, policy = start(place)
    ends = draw(env, Plainly(policy)).last

    @eqx.filter_jit
    def back(policy):
        return rollback(env, policy, ends, key=jax.random.key(5))

    found, plain = back(policy), back(Plainly(policy))
    np.testing.assert_array_equal(found.states, plain.states)
    np.testing.assert_array_equal(found.actions, plain.actions)


@float64
def test_values_and_both_products_of_the_jacobian():
    """Whatever the number of rows, and where the padding is."""
    env, policy = start("not listed")
    rng, total = np.random.default_rng(0), 750
    paths = draw(env, Plainly(policy), num=200)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[:total], paths.before)
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    change = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), x.dtype), params)

    @jax.jit
    def packed(params, live, slopes):
        visits = Visits.of(env, flat, live)
        value, push = jax.linearize(lambda p: outputs(eqx.combine(p, static), visits), params)
        return value, push(change), jax.linear_transpose(push, params)(slopes)[0], visits.count

    @jax.jit
    def plain(params, slopes):
        def logits(p):
            return jax.vmap(eqx.combine(p, static))(flat)

        return *jax.jvp(logits, (params,), (change,)), jax.vjp(logits, params)[1](slopes)[0]

    for count in (0, 1, 63, 64, 65, LARGE, LARGE + 1, LARGE + 65, 700):
        live = np.zeros(total, bool)
        live[rng.choice(total, count, replace=False)] = True
        slopes = jnp.where(live[:, None], rng.normal(size=(total, env.num_actions)), 0)
        value, pushed, pulled, rows = packed(params, jnp.asarray(live), slopes)
        assert int(rows) == count
        expected = plain(params, slopes)
        for one, other in zip((value, pushed), expected[:2], strict=True):
            np.testing.assert_allclose(np.asarray(one)[live], np.asarray(other)[live], rtol=1e-5)
        one, other = (ravel_pytree(x)[0] for x in (pulled, expected[2]))
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_a_batch_has_the_residuals_and_the_gradient_of_the_plain_path(drawn):
    """From what the rollout kept, and from trajectories alone, as in replay."""
    _, env, policy, paths, _ = drawn
    bare = replace(paths, visits=None)
    backward = Uniform().backward(env)
    laws = {"proposal": UniformMixture(0.3), "reference": OnPolicy(), "weighting": Weighting()}

    @eqx.filter_jit
    def batch(policy, paths, whole):
        flow = Flow(policy, backward, jnp.array(0.3))
        found = evaluate(TrajectoryBalance(), env, flow, paths, whole=whole, **laws)
        gradient = ravel_pytree(eqx.filter(found.gradient(), eqx.is_inexact_array))[0]
        return found.residuals, found.weights, gradient

    plain = batch(Plainly(policy), bare, False)
    for given, whole in ((paths, True), (bare, False)):
        found = batch(policy, given, whole)
        for one, other in zip(found, plain, strict=True):
            scale = np.abs(other).max()
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * scale)
