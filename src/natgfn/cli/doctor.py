r"""Whether this machine computes what it should.

A compiler can be wrong: jax 0.10.2 hands small matrix products on the CPU to a library that
loses rows when a sum is fused behind them, without a word. So one small Fisher system
$(F + \lambda I) v = h$, of a network on the states of a grid, is solved by conjugate
gradients with the library's own product and with a plain one, by Cholesky, and in float64
by NumPy, which no compiler of JAX touches; and products behind which a sum is fused are
compared row by row.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.sparse.linalg as jssl
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from ..envs import Hypergrid, State
from ..fisher import Fisher, Occupancy
from ..policies import AbstractPolicy
from ..solvers import Dense
from ..training import versions

KNOWN_BAD = ("0.10.2",)
"""Versions of jax that compute wrong numbers, whether or not a probe happens to show it."""

HEALTHY = "healthy"
"""The verdict on a machine that can be trusted."""

REMEDY = "install another version of jax, for example: pip install jax==0.10.0 jaxlib==0.10.0"

_DAMPING = 1e-3
_TOLERANCE = 1e-2
_ROWS = 40_000


class Network(AbstractPolicy):
    """A perceptron with leaky rectifiers, on what the environment shows of a state."""

    env: Hypergrid
    layers: list[tuple[Float[Array, "_ _"], Float[Array, " _"]]]

    def __call__(self, state: State) -> Float[Array, " actions"]:
        value = self.env.observe(state)
        for weight, bias in self.layers[:-1]:
            value = jax.nn.leaky_relu(value @ weight + bias)
        weight, bias = self.layers[-1]
        return value @ weight + bias


class Probe(NamedTuple):
    """One computation, and how far it is from NumPy in float64, relatively."""

    name: str
    error: float

    @property
    def ok(self) -> bool:
        # Written so that a NaN is not fine.
        return self.error < _TOLERANCE


def examine() -> list[Probe]:
    """Run every probe."""
    return [*_solves(), _row_sums()]


def report() -> Iterator[str]:
    """Versions and devices, a line for each probe, and the verdict, which comes last."""
    yield "  ".join(f"{name} {version}" for name, version in versions().items())
    yield f"devices: {', '.join(str(device) for device in jax.devices())}"
    probes = examine()
    for probe in probes:
        verdict = "ok" if probe.ok else "FAILED"
        yield f"{verdict:<7}{probe.name}: relative error {probe.error:.1e}"
    yield judge(probes, jax.__version__)


def judge(probes: list[Probe], version: str) -> str:
    """The verdict: "healthy", or a refusal that says what is wrong and what to do."""
    wrong = [probe.name for probe in probes if not probe.ok]
    if wrong:
        known = f", and jax {version} is known to be bad" if version in KNOWN_BAD else ""
        return f"not healthy: wrong numbers from {'; '.join(wrong)}{known}: {REMEDY}"
    if version in KNOWN_BAD:
        return f"not healthy: jax {version} is known to compute wrong numbers: {REMEDY}"
    return HEALTHY


def _solves() -> Iterator[Probe]:
    """A damped Fisher system in float32, three ways."""
    grid, rng = Hypergrid(side=8), np.random.default_rng(0)
    states = grid.objects()._replace(stopped=jnp.zeros(64, bool))
    sizes = (16, 32, 32, 3)
    layers = [
        (rng.uniform(-1, 1, (a, b)) / np.sqrt(a), rng.uniform(-1, 1, b) / np.sqrt(a))
        for a, b in pairwise(sizes)
    ]
    policy = Network(grid, jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), layers))
    weights = jnp.asarray(rng.dirichlet(np.ones(64)), jnp.float32)
    fisher = Fisher(grid, policy, Occupancy(states, weights))

    @eqx.filter_jit
    def solve(fisher: Fisher, h: AbstractPolicy, product: Callable) -> Float[Array, " p"]:
        def damped(v):
            return jax.tree.map(lambda fv, v: fv + _DAMPING * v, product(fisher, v), v)

        solution, _ = jssl.cg(damped, h, tol=1e-6, maxiter=500)
        return ravel_pytree(solution)[0]

    jacobian, covariance = _by_hand(policy, fisher)
    matrix = np.einsum("nap,nab,nbq->pq", jacobian, covariance, jacobian, optimize=True)
    # A gradient of the network's own: what a solver is given in training.
    h = np.einsum("nap,na->p", jacobian, rng.normal(size=(64, 3)) / 64)
    expected = np.linalg.solve(matrix + _DAMPING * np.eye(len(h)), h)
    h = ravel_pytree(eqx.filter(policy, eqx.is_inexact_array))[1](jnp.asarray(h, jnp.float32))

    yield Probe("conjugate gradients", _error(solve(fisher, h, Fisher.mv), expected))
    plain = solve(fisher, h, plain_product)
    yield Probe("conjugate gradients, plain precision", _error(plain, expected))
    dense = eqx.filter_jit(Dense().solve)(fisher, h, _DAMPING)
    yield Probe("dense Cholesky", _error(ravel_pytree(dense)[0], expected))


def plain_product(fisher: Fisher, vector: AbstractPolicy) -> AbstractPolicy:
    """What `Fisher.mv` computes, at the precision the compiler chooses."""
    params, static = eqx.partition(fisher.policy, eqx.is_inexact_array)
    states, weights = fisher.occupancy.states, fisher.occupancy.weights

    def logits(params):
        return jax.vmap(eqx.combine(params, static))(states)

    value, push = jax.linearize(logits, params)
    mask = jax.vmap(fisher.env.forward_mask)(states)
    probs = jax.nn.softmax(jnp.where(mask, value, -1e30))
    u = push(vector)
    u = weights[:, None] * probs * (u - jnp.sum(probs * u, axis=1, keepdims=True))
    return jax.linear_transpose(push, params)(u)[0]


def _by_hand(
    policy: Network, fisher: Fisher
) -> tuple[Float[np.ndarray, "n actions p"], Float[np.ndarray, "n actions actions"]]:
    """Jacobian of the logits and weighted covariance of the scores, in NumPy and float64."""
    states = fisher.occupancy.states
    layers = jax.tree.map(lambda x: np.asarray(x, np.float64), policy.layers)
    values, slopes = [np.asarray(jax.vmap(fisher.env.observe)(states), np.float64)], []
    for weight, bias in layers[:-1]:
        linear = values[-1] @ weight + bias
        slopes.append(np.where(linear > 0, 1.0, 0.01))
        values.append(linear * slopes[-1])
    logits = values[-1] @ layers[-1][0] + layers[-1][1]

    n, actions = logits.shape
    back, columns = np.broadcast_to(np.eye(actions), (n, actions, actions)), []
    for layer in reversed(range(len(layers))):
        outer = np.einsum("nai,nj->naji", back, values[layer]).reshape(n, actions, -1)
        columns = [outer, back, *columns]
        if layer:
            back = back @ layers[layer][0].T * slopes[layer - 1][:, None]

    mask = np.asarray(jax.vmap(fisher.env.forward_mask)(states))
    probs = np.where(mask, np.exp(logits - logits.max(axis=1, keepdims=True)), 0.0)
    probs /= probs.sum(axis=1, keepdims=True)
    covariance = probs[:, :, None] * np.eye(actions) - probs[:, :, None] * probs[:, None]
    weights = np.asarray(fisher.occupancy.weights, np.float64)
    return np.concatenate(columns, axis=2), weights[:, None, None] * covariance


def _row_sums(batched: Callable[[Callable], Callable] = jax.vmap) -> Probe:
    """$|W x_k|^2$ for many rows: the sum is fused behind a small matrix product."""
    rng = np.random.default_rng(2)
    matrix, rows = rng.normal(size=(3, 3)), rng.normal(size=(_ROWS, 3))

    @jax.jit
    def squares(matrix, rows):
        return batched(lambda row: jnp.sum((matrix @ row) ** 2))(rows)

    got = squares(jnp.asarray(matrix, jnp.float32), jnp.asarray(rows, jnp.float32))
    return Probe(
        f"{_ROWS:,} fused products and sums", _error(got, np.square(rows @ matrix.T).sum(axis=1))
    )


def _error(got: Array, expected: np.ndarray) -> float:
    difference = np.asarray(got, np.float64) - expected
    return float(np.linalg.norm(difference) / np.linalg.norm(expected))
