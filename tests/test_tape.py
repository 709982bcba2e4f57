"""The Gram matrix of a perceptron from its activations, against rows of the Jacobian."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from oracles import float64

from natgfn.envs import Hypergrid
from natgfn.objectives import Kept, Passing, TrajectoryBalance, evaluate, residual_rows
from natgfn.policies import Flow, Network, Uniform
from natgfn.sampling import OnPolicy, Weighting, rollout
from natgfn.statespace import enumerate_states

LAWS = {"proposal": OnPolicy(), "reference": None, "weighting": Weighting()}


@pytest.mark.parametrize(
    ("env", "num", "stop", "kind"),
    [
        pytest.param(Hypergrid(side=3), 12, 0.0, "few", id="more trajectories than states"),
        pytest.param(Hypergrid(side=5), 6, 0.0, "passing", id="short"),
        pytest.param(Hypergrid(side=12), 5, -3.0, "kept", id="long"),
        pytest.param(Hypergrid(side=40), 5, 0.0, "kept", id="short where they could be long"),
    ],
)
@float64
def test_the_gram_matrix_is_that_of_the_rows(env, num, stop, kind):
    space = enumerate_states(env)
    forward = Network(5, 2)(space, key=jax.random.key(1))
    forward = eqx.tree_at(
        lambda n: n.rest[-1].bias, forward, replace_fn=lambda b: b.at[-1].add(stop)
    )
    flow = Flow(forward, Uniform().backward(space), jnp.array(0.3))
    flow = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, flow)
    scale = jax.tree.map(
        lambda x: jnp.asarray(np.random.default_rng(x.size).uniform(0.2, 3, x.shape)),
        eqx.filter(flow, eqx.is_inexact_array),
    )

    @jax.jit
    def both(key):
        paths = rollout(space, flow.forward, OnPolicy(), num, key=key, keep=True)
        batch = evaluate(TrajectoryBalance(), space, flow, paths, whole=True, **LAWS)
        assert isinstance(batch.tape, Kept if kind == "kept" else Passing)
        assert kind == "kept" or (batch.tape.few is not None) == (kind == "few")
        rows = residual_rows(space, flow, batch.paths, batch.probs)
        grams = batch.tape.gram(), batch.tape.gram(scale), batch.tape.gram(scale, block=64)
        x, v = jnp.arange(1.0, num + 1), ravel_pytree(scale)[0]
        products = ravel_pytree(batch.pull(x))[0] - x @ rows, batch.push(scale) - rows @ v
        return rows, v, grams, products, paths.lengths

    rows, v, grams, products, lengths = both(jax.random.key(2))
    assert len(set(np.asarray(lengths))) > 1
    plain, scaled, in_blocks = grams
    np.testing.assert_allclose(plain, rows @ rows.T, rtol=1e-10)
    np.testing.assert_allclose(scaled, (rows * v) @ rows.T, rtol=1e-10)
    np.testing.assert_allclose(in_blocks, scaled, rtol=1e-10)
    for difference in products:
        np.testing.assert_allclose(difference, 0, atol=1e-10)
