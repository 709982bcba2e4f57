r"""Sinkhorn-Wasserstein-corrected trajectory balance, a baseline of `tab:8g_ext`.

The paper does not define it; this is $L_{TB} + \gamma\, S_\varepsilon(p_\theta, \pi)$ with the
Sinkhorn divergence
$$S_\varepsilon(p, \pi) = OT_\varepsilon(p, \pi) - \tfrac12 OT_\varepsilon(p, p)
                        - \tfrac12 OT_\varepsilon(\pi, \pi)$$
between terminal laws on a grid, whose cost is the squared distance in units of the side. Its
gradient in $p$ is a difference of dual potentials, $f = f_{p\pi} - f_{pp}$ (Feydy et al., 2019), so
that in $\theta$ it is $E_q[f(x_\tau)\, z_\tau]$. It needs the normalised target: it is no sampler
for an unknown one.

The iteration is here because `ott-jax`, which has it too, needs `jaxopt`, which is no longer kept.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..envs import AbstractEnv, OnGrid
from ..policies import Flow, forward_probs
from ..sampling import PathLogProbs, Trajectories
from ..statespace import StateSpace, occupancy
from .balance import Penalty, TrajectoryBalance
from .base import AbstractObjective
from .penalties import Squared


class Transport(AbstractObjective):
    r"""Trajectory balance and a distance between terminal laws.

    Attributes:
        penalty: on the residuals.
        weight: $\gamma$.
        blur: $\varepsilon$.
        exact: whether $p_\theta$ comes from dynamic programming and $\pi$ from all rewards;
            otherwise from the objects of the batch, and from their rewards.
    """

    by_trajectory: ClassVar[bool] = True

    penalty: Penalty = Squared()
    weight: float = 1.0
    blur: float = 0.05
    exact: bool = True

    def __check_init__(self):
        for name in ("weight", "blur"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {getattr(self, name)}")

    def residuals(
        self, env: AbstractEnv, flow: Flow, paths: Trajectories
    ) -> tuple[Float[Array, " rows"], PathLogProbs]:
        return TrajectoryBalance(self.penalty).residuals(env, flow, paths)

    def potential(self, env: AbstractEnv, flow: Flow, paths: Trajectories) -> Float[Array, " n"]:
        if not isinstance(env, StateSpace) or not isinstance(env.env, OnGrid):
            raise ValueError("objectives.Transport needs an enumerated environment on a grid")
        if env.num_terminal > _MOST:
            raise ValueError(
                f"objectives.Transport compares every two objects: expected at most {_MOST:,}, "
                f"got {env.num_terminal:,}"
            )
        ends, log_reward = paths.last - env.num_inner, jnp.asarray(env.log_rewards)
        if self.exact:
            law = occupancy(env, forward_probs(env, flow.forward))[1]
        else:
            law = jnp.zeros(env.num_terminal, log_reward.dtype).at[ends].add(1 / ends.size)
            log_reward = jnp.where(law > 0, log_reward, -jnp.inf)
        kernel = jnp.exp(-_costs(env) / self.blur).astype(law.dtype)
        target = jax.nn.softmax(log_reward).astype(law.dtype)
        f, own = (dual_potential(law, other, kernel) for other in (target, law))
        return jax.lax.stop_gradient(self.weight * self.blur * (f - own)[ends])


_MOST = 4096
"""Objects, at most."""


def _costs(space: StateSpace) -> Float[Array, "terminals terminals"]:
    """Squared distances between objects, in units of the longest side."""
    grid = space.env
    assert isinstance(grid, OnGrid)
    places = jax.vmap(grid.coordinates)(jax.tree.map(jnp.asarray, space.terminals))
    unit = jnp.max(jnp.max(places, axis=0) - jnp.min(places, axis=0))
    apart = (places[:, None] - places[None]) / unit
    return jnp.sum(apart**2, axis=2)


def dual_potential(
    p: Float[Array, " n"], q: Float[Array, " n"], kernel: Float[Array, "n n"]
) -> Float[Array, " n"]:
    r"""$f / \varepsilon$ with $\nabla_p OT_\varepsilon(p, q) = f$, by Sinkhorn's iteration.

    The plan is $u_x K_{xy} v_y$, with $K = e^{-c / \varepsilon}$ and $f = -\varepsilon \log K v$.
    """

    def unfinished(carry):
        k, _, error = carry
        return (k < _ITERATIONS) & (error > _TOLERANCE)

    def iterate(carry):
        k, v, _ = carry
        sent = kernel @ (p / (kernel @ v))
        return k + 1, q / sent, jnp.sum(jnp.abs(v * sent - q))

    start = jnp.array(0), q, jnp.array(jnp.inf, q.dtype)
    _, v, _ = jax.lax.while_loop(unfinished, iterate, start)
    return -jnp.log(kernel @ v)


_ITERATIONS, _TOLERANCE = 100, 1e-4
"""Of Sinkhorn's iteration; the tolerance is that of a marginal, in total variation."""
