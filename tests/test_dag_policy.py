"""Policies for graphs: the transformer against its definition, the guide against its own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dag_oracles import guide_logits, random_weights
from oracles import attended, densely, float64

from benchmarks.dag import operations
from natgfn.dag.guide import Guide, GuidedPolicy
from natgfn.dag.sampler import draw
from natgfn.envs import Dag, Dags, Hypergrid
from natgfn.fisher import Fisher, Occupancy
from natgfn.policies import Flow, Network, Uniform, UniformPolicy, transformer
from natgfn.policies.transformer import LinearTransformer, Transformer
from natgfn.sampling import OnPolicy, log_probs, rollout

SMALL = Transformer(width=8, depth=2, heads=2, feed=12)


def some_states(env: Dags, count: int = 20) -> Dag:
    policy = UniformPolicy(env.num_actions)
    draw = jax.jit(lambda key: rollout(env, policy, OnPolicy(), count, key=key))
    paths = draw(jax.random.key(3))
    times = np.random.default_rng(0).integers(0, np.asarray(paths.lengths))
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[times, np.arange(count)]), paths.states)


def by_definition(policy: LinearTransformer, edges: np.ndarray) -> np.ndarray:
    """Token by token, head by head."""
    source, target, presence = (
        np.asarray(x, np.float64) for x in (policy.source, policy.target, policy.presence)
    )
    tokens = attended(policy, [
        source[i] + target[j] + presence[int(edges[i, j])]
        for i in range(len(source)) for j in range(len(source)) if i != j
    ])  # fmt: skip
    stop = densely(policy.stop, np.mean(tokens, axis=0))
    return np.array([*(densely(policy.edge, x)[0] for x in tokens), stop[0]])


def wide(policy):
    return jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, policy)


@float64
def test_the_transformer_is_what_its_definition_says():
    env = Dags(random_weights(4, 1.0, 0))
    policy = wide(SMALL(env, key=jax.random.key(0)))
    # Norms and biases start at ones and zeros: random ones, so that none can be forgotten.
    leaves, tree = jax.tree.flatten(policy)
    rng = np.random.default_rng(1)
    policy = jax.tree.unflatten(tree, [x + 0.1 * rng.normal(size=x.shape) for x in leaves])
    states = some_states(env, 5)
    expected = np.stack([by_definition(policy, np.asarray(x)) for x in states.edges])
    both = jax.jit(lambda policy, states: (jax.vmap(policy)(states), policy.many(states)))
    for found in both(policy, states):
        np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.slow
@float64
def test_chunks_and_padding_change_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transformer, "CHUNK", 8)
    env = Dags(random_weights(4, 1.0, 0))
    policy = wide(SMALL(env, key=jax.random.key(0)))
    states, live = some_states(env), jnp.arange(20) % 3 != 1
    weights = jnp.where(live[:, None], jax.random.normal(jax.random.key(1), (20, 13)), 0.0)
    params, static = eqx.partition(policy, eqx.is_inexact_array)

    def plain(params):
        return jnp.sum(weights * jax.vmap(eqx.combine(params, static))(states))

    def chunked(params):
        found = eqx.combine(params, static).many(states, live)
        return jnp.sum(jnp.where(live[:, None], weights * found, 0.0))

    for one, other in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(plain))(params)),
        jax.tree.leaves(jax.jit(jax.value_and_grad(chunked))(params)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, atol=1e-10)


@pytest.mark.slow
@float64
def test_the_fisher_of_the_transformer_is_that_of_its_states():
    env = Dags(random_weights(3, 1.0, 0))
    policy = wide(Transformer(width=4, depth=1, heads=2, feed=4)(env, key=jax.random.key(0)))
    states = some_states(env, 6)
    weights = jnp.array([0.5, 0.0, 1.0, 0.2, 0.0, 0.3])
    fisher = Fisher(env, policy, Occupancy(states, weights))
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    v = jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size, dtype=float)).reshape(x.shape), params)

    mask = jax.vmap(env.forward_mask)(states)

    def log_probs_of(params):
        logits = jax.vmap(eqx.combine(params, static))(states)
        return jnp.where(mask, policy.log_probs(logits, mask), 0.0)

    probs, change = jax.jit(lambda p, v: jax.jvp(log_probs_of, (p,), (v,)))(params, v)
    quadratic = jnp.sum(weights[:, None] * jnp.where(mask, jnp.exp(probs), 0.0) * change**2)
    product = eqx.filter_jit(lambda fisher, v: fisher.mv(v))(fisher, v)
    found = sum(
        jnp.sum(x * y) for x, y in zip(jax.tree.leaves(v), jax.tree.leaves(product), strict=True)
    )
    np.testing.assert_allclose(found, quadratic, rtol=1e-10)


def test_operations_are_those_of_every_matrix_product():
    # Two tokens of two variables: q, k, v and out, two products of a head, up and down; heads.
    design = Transformer(width=4, depth=1, heads=2, feed=3)
    token = 4 * 16 + 2 * (2 * 2 * 2) + 2 * 12 + 4
    assert operations(design, 2) == 2 * (2 * token + 4)


def test_a_transformer_is_for_graphs_and_tokens():
    with pytest.raises(ValueError, match="multiple of heads"):
        Transformer(width=6, heads=4)
    with pytest.raises(ValueError, match=r"each edge of a graph .* or reads tokens .* Hypergrid"):
        Transformer()(Hypergrid(), key=jax.random.key(0))


def test_the_guide_is_what_its_definition_says():
    table = random_weights(5, 1.5, 5)
    table[:, np.bitwise_count(np.arange(32)) > 3] = -np.inf
    table[2, np.arange(32) & 1 == 0] = -np.inf  # 0 -> 2 is required
    env = Dags(table)
    guide, states = Guide.of(env), some_states(env)
    found, mask = jax.jit(lambda x: (guide.many(x), jax.vmap(env.forward_mask)(x)))(states)
    assert np.all(np.sum(guide.power > 0, axis=0) == 4)
    table[2] = np.maximum(table[2], table[2, np.arange(32) | 1])
    source, target = env.pairs
    found, valid = np.asarray(found), np.asarray(mask)[:, :-1]
    for state in range(20):
        edges, reached = (np.asarray(x[state]) for x in (states.edges, states.reached))
        edge, stop = guide_logits(table, edges, reached, required=1)
        here = valid[state]
        np.testing.assert_allclose(found[state, :-1][here], edge[source, target][here], atol=0.05)
        assert found[state, -1] == pytest.approx(stop, abs=1e-3)


def test_the_guide_is_exact_where_pairs_owe_each_other_nothing():
    """Every child can have one parent, with even odds, and no cycle is possible."""
    table = np.full((6, 64), -np.inf)
    table[:, 0] = 0.0
    for child in (1, 2, 3, 4, 5):
        table[child, 1 << (child - 1) // 2] = 0.0
    env = Dags(table)
    flow = Flow(Guide.of(env), Uniform().backward(env), jnp.array(0.0))
    draws = draw(env, flow, 500, seed=0)
    np.testing.assert_allclose(draws.log_weights, 5 * np.log(2), atol=1e-4)


@pytest.mark.slow
def test_a_network_corrects_the_guide_and_alone_is_trained():
    env = Dags(random_weights(3, 1.0, 0))
    network = Network(8, 1)(env, key=jax.random.key(0))
    policy = GuidedPolicy(Guide.of(env), network)
    states = some_states(env, 4)
    expected = policy.guide.many(states) + jax.vmap(network)(states)
    np.testing.assert_allclose(policy.many(states), expected, rtol=1e-6)

    @eqx.filter_jit
    def gradient(flow):
        paths = rollout(env, flow.forward, OnPolicy(), 4, key=jax.random.key(0))
        return eqx.filter_grad(lambda f: jnp.sum(log_probs(env, f, paths).forward))(flow)

    found = gradient(Flow(policy, Uniform().backward(env), jnp.array(0.0)))
    trained = jax.tree.leaves(eqx.filter(found, eqx.is_inexact_array))
    ours = jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array))
    assert len(trained) == len(ours) + 1
