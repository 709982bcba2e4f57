"""What zero residuals imply: `app:gflownet_realizability`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from natgfn.certify import Bound
from natgfn.statespace import StateSpace, backward_sums, leaving_order, occupancy


def reachable(space: StateSpace, pf: Float[Array, "inner actions"]) -> Bool[Array, " terminals"]:
    r"""Which objects a policy with these supports can make; elsewhere $q_F(x) = 0$.

    Of an enumerated environment every object is reachable by some policy; a policy may
    still close the way to it.
    """
    return occupancy(space, (pf > 0).astype(pf.dtype))[1] > 0


def trajectory_balance_gap(
    space: StateSpace,
    log_pf: Float[Array, "inner actions"],
    log_pb: Float[Array, "states actions"],
    log_z: Float[Array, ""],
) -> Bound:
    r"""Zero residuals of all trajectories give the target exactly (`eq:app_tb_terminal_law`).

    Small ones nearly: if $|\delta(\tau)| \le \epsilon$ for all $\tau$, then $q(x)$ is within
    $e^{\pm 2\epsilon}$ of $\pi(x)$. So $\max_x |\log q(x) - \log \pi(x)|$ is set against twice the
    largest residual, which dynamic programming finds among all paths.
    """
    child = jnp.asarray(space.child)
    step = jnp.where(child >= 0, log_pf - leaving_order(space, log_pb), 0.0)
    residual = jnp.max(jnp.abs(_extremes(space, step) + log_z))
    return Bound(_law_gap(space, log_pf), 2 * residual)


def detailed_balance_gap(
    space: StateSpace,
    log_pf: Float[Array, "inner actions"],
    log_pb: Float[Array, "states actions"],
    log_flow: Float[Array, " states"],
) -> Bound:
    r"""The same from the residuals of single edges, `eq:app_exact_DB_edge` and
    `eq:app_terminal_flow_reward`.

    A path of $T$ edges adds up $T$ of them and one of the terminal flow.
    """
    child = jnp.asarray(space.child)
    before, after = log_flow[: space.num_inner, None], log_flow[child]
    edge = jnp.where(child >= 0, before + log_pf - after - leaving_order(space, log_pb), 0.0)
    end = jnp.max(jnp.abs(log_flow[space.num_inner :] - jnp.asarray(space.log_rewards)))
    worst = space.max_steps * jnp.max(jnp.abs(edge)) + end
    return Bound(_law_gap(space, log_pf), 2 * worst)


def _law_gap(space: StateSpace, log_pf: Float[Array, "inner actions"]) -> Float[Array, ""]:
    law = occupancy(space, jnp.exp(log_pf))[1]
    log_target = jax.nn.log_softmax(jnp.asarray(space.log_rewards, log_pf.dtype))
    return jnp.max(jnp.abs(jnp.log(law) - log_target))


def _extremes(space: StateSpace, step: Float[Array, "inner actions"]) -> Float[Array, " two"]:
    """The smallest and the largest sum of `step` less the log-reward, over all trajectories."""
    valid = jnp.asarray(space.child) >= 0

    def largest(sign):
        edges = jnp.where(valid, sign * step, -jnp.inf)
        ends = -sign * jnp.asarray(space.log_rewards, step.dtype)
        return backward_sums(space, ends, lambda below, edge: jnp.max(below + edge, axis=1), edges)

    return jnp.stack([-largest(-1.0)[0], largest(1.0)[0]])
