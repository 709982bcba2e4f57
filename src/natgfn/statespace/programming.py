r"""Exact dynamic programming over an enumerated environment.

Forwards, along edges $s \to s'$ with weights $w$, from $g(s_0) = 1$:
$$g(s') = \bigoplus_{a : s \to s'} g(s) \otimes w(s, a).$$
With $w = \pi$ in the sum-product semiring this is the occupancy of `eq:occupancy_main`, and
on terminal states the terminal law; with $w = 1$ it counts paths. Backwards it gives flows
and expected residuals. Both directions scan over blocks of equal size that never straddle
two levels of the graph, so one small program serves every environment, graded or not.

Tables of edges are indexed by the state they leave (`[inner, actions]`, forward policies)
or by the state they enter (`[states, actions]`, backward policies).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from .space import StateSpace


class Semiring(NamedTuple):
    zero: float
    one: float
    times: Callable[[Array, Array], Array]
    plus: Callable[..., Array]


SUM_PRODUCT = Semiring(0.0, 1.0, jnp.multiply, jnp.sum)
LOG_SUM_PRODUCT = Semiring(-jnp.inf, 0.0, jnp.add, logsumexp)


def forward_sums(
    space: StateSpace, weights: Float[Array, "inner actions"], semiring: Semiring = SUM_PRODUCT
) -> Float[Array, " states"]:
    """Total weight of the paths from the source to each state."""
    inner, actions = weights.shape
    arrivals, last_arrivals = map(jnp.asarray, space.arrivals)
    offsets = jnp.arange(space.chunk_size)

    def block(carry, start):
        total, flow = carry
        edges = jax.lax.dynamic_slice_in_dim(arrivals, start, space.chunk_size)
        value = semiring.plus(flow[edges], axis=1)
        value = jnp.where(start + offsets == 0, semiring.one, value)
        leaving = jax.lax.dynamic_slice_in_dim(weights, start, space.chunk_size)
        leaving = semiring.times(value[:, None], leaving).ravel()
        total = jax.lax.dynamic_update_slice_in_dim(total, value, start, 0)
        return (total, jax.lax.dynamic_update_slice_in_dim(flow, leaving, start * actions, 0)), None

    total = jnp.full(inner, semiring.zero, weights.dtype)
    flow = jnp.full(inner * actions + 1, semiring.zero, weights.dtype)
    (total, flow), _ = jax.lax.scan(block, (total, flow), jnp.asarray(space.chunks))
    return jnp.concatenate([total, semiring.plus(flow[last_arrivals], axis=1)])


def backward_sums(
    space: StateSpace,
    terminal: Float[Array, " terminals"],
    combine: Callable[[Array, Array], Array],
    edges: Float[Array, "inner actions ..."],
) -> Float[Array, " states"]:
    """Values from the terminal states back: `combine(child_values, edges)` for each state.

    Invalid actions have child value 0 and must be given an edge that ignores it.
    """
    child = jnp.asarray(space.child)
    inner = child.shape[0]

    def block(value, start):
        here = jax.lax.dynamic_slice_in_dim(child, start, space.chunk_size)
        edge = jax.lax.dynamic_slice_in_dim(edges, start, space.chunk_size)
        below = jnp.where(here >= 0, value[here], 0.0)
        return jax.lax.dynamic_update_slice_in_dim(value, combine(below, edge), start, 0), None

    value = jnp.concatenate([jnp.zeros(inner, terminal.dtype), terminal])
    value, _ = jax.lax.scan(block, value, jnp.asarray(space.chunks), reverse=True)
    return value


def occupancy(
    space: StateSpace, pf: Float[Array, "inner actions"]
) -> tuple[Float[Array, " inner"], Float[Array, " terminals"]]:
    r"""Expected visits $d_\theta(s)$ (`eq:occupancy_main`), and the terminal law $q_\theta(x)$."""
    total = forward_sums(space, pf)
    return total[: space.num_inner], total[space.num_inner :]


def timed_occupancy(
    space: StateSpace, pf: Float[Array, "inner actions"]
) -> Float[Array, "times inner"]:
    r"""$d_{\theta,t}(s) = \Pr(t < T, s_t = s)$, of `app:computational_regimes_detailed`."""
    arrivals = jnp.asarray(space.arrivals[0])

    def advance(now, _):
        flow = jnp.append((now[:, None] * pf).ravel(), 0.0)
        return jnp.sum(flow[arrivals], axis=1), now

    start = jnp.zeros(space.num_inner, pf.dtype).at[0].set(1.0)
    return jax.lax.scan(advance, start, length=space.max_steps)[1]


def log_path_counts(space: StateSpace) -> Float[Array, " states"]:
    """Logarithm of the number of paths from the source to each state."""
    valid = jnp.asarray(space.child) >= 0
    return forward_sums(space, jnp.where(valid, 0.0, -jnp.inf), LOG_SUM_PRODUCT)


def backward_mass(
    space: StateSpace, log_pb: Float[Array, "states actions"]
) -> Float[Array, " states"]:
    r"""$\sum_{\tau : s_0 \to s} P_B(\tau \mid s)$, which is 1 wherever $P_B$ is normalised."""
    return forward_sums(space, jnp.exp(leaving_order(space, log_pb)))


def constructive_flow(
    space: StateSpace,
    log_pb: Float[Array, "states actions"],
    log_reward: Float[Array, " terminals"],
) -> tuple[Float[Array, " states"], Float[Array, "inner actions"]]:
    r"""The log-flow through each state, and the policy that realises a target exactly.

    $F(x) = R(x)$, $F(s) = \sum_a P_B(a \mid s')\, F(s')$ and
    $\pi(a \mid s) = P_B(a \mid s') F(s') / F(s)$ (`eq:app_realizability_forward_policy`).
    """
    edges = leaving_order(space, log_pb)
    log_flow = backward_sums(
        space, log_reward, lambda below, edge: logsumexp(below + edge, axis=1), edges
    )
    outgoing = edges + jnp.where(space.child >= 0, log_flow[jnp.asarray(space.child)], 0.0)
    inner_flow = log_flow[: space.num_inner, None]
    # A state that leads only to zero rewards carries no flow, and any policy will do there.
    empty = jnp.where(jnp.asarray(space.child) >= 0, 0.0, -jnp.inf)
    empty = empty - logsumexp(empty, axis=1, keepdims=True)
    return log_flow, jnp.where(inner_flow == -jnp.inf, empty, outgoing - inner_flow)


def leaving_order(
    space: StateSpace, entering: Float[Array, "states actions"]
) -> Float[Array, "inner actions"]:
    """A table of edges by the state they enter, rearranged by the state they leave."""
    child = jnp.asarray(space.child)
    return jnp.where(child >= 0, entering[child, jnp.arange(child.shape[1])], -jnp.inf)


class Residuals(NamedTuple):
    r"""The trajectory-balance residual $\delta$ under the policy's own law, exactly."""

    loss: Float[Array, ""]
    r"""$E_{q_\theta}[\delta^2]$."""
    mean: Float[Array, ""]
    r"""$E_{q_\theta}[\delta]$."""
    score_gradient: Float[Array, "inner actions"]
    r"""$h = E_{q_\theta}[2\delta\, \nabla \log q_\theta]$ with respect to tabular logits."""


def exact_residuals(
    space: StateSpace,
    log_pf: Float[Array, "inner actions"],
    log_pb: Float[Array, "states actions"],
    log_z: Float[Array, ""],
) -> Residuals:
    r"""Second moment and forward gradient of the residual of `eq:tb_residual_training`.

    With $V(s)$ the expected rest of the residual from $s$ on, and $A(s, a)$ what choosing $a$
    adds to it, the scores being martingale differences gives
    $E[\delta^2] = V(s_0)^2 + \sum_s d(s) \sum_a \pi(a|s) A(s,a)^2$ and
    $h_{s,a} = 2\, d(s)\, \pi(a|s)\, A(s,a)$, so that $(d(s) C(\pi_s))^\dagger h_s = 2 A(s, \cdot)$
    up to a constant: the exact natural gradient is twice the advantage.
    """
    valid = jnp.asarray(space.child) >= 0
    pf = jnp.exp(log_pf)
    step = jnp.where(valid, log_pf - leaving_order(space, log_pb), 0.0)

    def expect(below, edge):
        return jnp.sum(edge[..., 0] * (edge[..., 1] + below), axis=1)

    minus_log_reward = -jnp.asarray(space.log_rewards, log_pf.dtype)
    value = backward_sums(space, minus_log_reward, expect, jnp.stack([pf, step], axis=-1))
    ahead = step + jnp.where(valid, value[jnp.asarray(space.child)], 0.0)
    advantage = jnp.where(valid, ahead - value[: space.num_inner, None], 0.0)
    visits = occupancy(space, pf)[0][:, None]
    mean = log_z + value[0]
    loss = mean**2 + jnp.sum(visits * pf * advantage**2)
    return Residuals(loss, mean, 2.0 * visits * pf * advantage)
