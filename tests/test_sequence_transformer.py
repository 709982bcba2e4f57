"""The Transformer on tokens: against its definition, blind behind the mask, and trained."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import attended, densely, float64

import natgfn as ng
from natgfn.envs import (
    AppendedSequences,
    BitSequences,
    ExtendedSequences,
    FilledSequences,
    HasTokens,
    Hypergrid,
    Sequence,
    TFBind8,
)
from natgfn.optim import Adam, Natural, SampleSpace
from natgfn.policies import SequenceTransformer, Transformer
from natgfn.statespace import enumerate_states
from natgfn.training import read_settings, setup_from

SMALL = Transformer(width=8, depth=2, heads=2, feed=12)
TABLE = np.exp(np.random.default_rng(0).normal(size=27))
FORMS = {"append": AppendedSequences, "extend": ExtendedSequences, "fill": FilledSequences}


def random_policy(env, **others) -> SequenceTransformer:
    """In double precision. Norms and biases start at ones and zeros: random ones, so that none can
    be forgotten."""
    policy = SMALL(env, key=jax.random.key(0), **others)
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: x + 0.1 * rng.normal(size=x.shape) if eqx.is_inexact_array(x) else x, policy
    )


def by_definition(policy: SequenceTransformer, tokens: list[int]) -> np.ndarray:
    """From the tokens that are there, and no others."""
    letters, positions, start = (
        np.asarray(x, np.float64) for x in (policy.letters, policy.positions, policy.start)
    )
    there = [letters[token] + positions[i] for i, token in enumerate(tokens) if token >= 0]
    first, *rest = attended(policy, [start[0], *there])
    if policy.by_position:
        return np.concatenate([densely(policy.head, x) for x in rest])
    return densely(policy.head, first)


@pytest.mark.parametrize("form", FORMS)
@float64
def test_it_is_what_its_definition_says(form):
    """Listed or not, with logits of all actions or any other number of outputs."""
    env = FORMS[form](TABLE, letters=3)
    letters = jnp.array([[3, 3, 3], [1, 3, 3], [2, 0, 3], [0, 1, 2]], jnp.int32)
    tokens = np.where((letters < 3) | (form == "fill"), letters, -1).tolist()
    np.testing.assert_array_equal(jax.vmap(env.tokens)(Sequence(letters)), tokens)
    policy = random_policy(env)
    found = jax.jit(lambda x: (policy.many(x), jax.vmap(policy)(x)))(Sequence(letters))
    expected = [by_definition(policy, row) for row in tokens]
    assert np.shape(expected) == (4, env.num_actions)
    for logits in found:
        np.testing.assert_allclose(logits, expected, atol=1e-12)

    space = enumerate_states(env)
    listed = random_policy(space)
    seen = np.asarray(space.states.letters)
    numbers = np.array([np.flatnonzero((seen == row).all(axis=1))[0] for row in letters])
    np.testing.assert_allclose(listed.many(jnp.asarray(numbers)), expected, atol=1e-12)

    flows = random_policy(env, outputs=1)
    alone = [by_definition(flows, row) for row in tokens]
    np.testing.assert_allclose(flows.many(Sequence(letters)), alone, atol=1e-12)


def test_nothing_behind_the_mask_is_seen():
    """Neither in the logits, to the bit, nor in their gradient."""
    env = AppendedSequences(TABLE, letters=3)
    policy, tokens = SMALL(env, key=jax.random.key(0)), jnp.array([[2, -1, -1]])

    @jax.jit
    def look(positions):
        moved = eqx.tree_at(lambda p: p.positions, policy, positions)
        return moved.evaluate(tokens)[0]

    other = policy.positions.at[1:].set(jnp.array([[1e3], [-7.0]]))
    np.testing.assert_array_equal(look(policy.positions), look(other))
    gradient = jax.jacrev(look)(policy.positions)
    assert np.all(np.asarray(gradient)[:, 1:] == 0)
    assert np.all(np.any(np.asarray(gradient)[:, 0] != 0, axis=-1))


def test_gradients_are_finite_in_single_precision():
    """Also of a sequence without a token, and with large parameters."""
    env = TFBind8()
    policy = SMALL(env, key=jax.random.key(0))
    tokens = jnp.array([[-1] * 8, [0, 3, *[-1] * 6], [0, 1, 2, 3, 0, 1, 2, 3]])

    @eqx.filter_jit
    def gradient(scale):
        def loss(policy):
            return jnp.sum(jax.nn.log_softmax(policy.evaluate(tokens))[:, 0])

        big = jax.tree.map(lambda x: scale * x if eqx.is_inexact_array(x) else x, policy)
        return eqx.filter_grad(loss)(big)

    for scale in (0.0, 1.0, 10.0):
        found = jax.tree.leaves(eqx.filter(gradient(scale), eqx.is_inexact_array))
        assert all(x.dtype == jnp.float32 and np.isfinite(x).all() for x in found)


@pytest.mark.trains
@pytest.mark.parametrize(
    "rule",
    [
        Adam(0.03),
        pytest.param(SampleSpace.network(), marks=pytest.mark.slow),
        pytest.param(Natural(rate=0.05, log_z_rate=0.5), marks=pytest.mark.slow),
    ],
)
def test_it_trains_by_every_kind_of_rule(rule):
    design = Transformer(width=8, depth=1, heads=2, feed=8)
    env = AppendedSequences(TABLE[:9], letters=3)
    run = ng.train(
        env, rule, policy=design, updates=50, batch=32, evaluate_every=50, progress=False
    )
    assert run.metrics["kl"][-1] < run.metrics["kl"][0] / 3
    assert run.metrics["rejected"][-1] == 0


def test_what_has_tokens_can_be_configured():
    assert all(isinstance(env, HasTokens) for env in (BitSequences(), TFBind8()))
    assert not isinstance(Hypergrid(), HasTokens)
    setup = setup_from(read_settings(None, ["env=tfbind8", "policy=transformer", "policy.width=8"]))
    assert setup.policy == Transformer(width=8)
    policy = jax.eval_shape(lambda key: SMALL(BitSequences(), key=key), jax.random.key(0))
    assert policy.letters.shape == (257, 8)
    assert policy.head.weight.shape == (8, 256)
