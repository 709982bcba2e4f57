r"""What structured occupancies cost: `app:computational_regimes_detailed`, in numbers.

A structured surrogate replaces the occupancies $p_t(c)$ of local summaries $c$ by approximations
$\widetilde p_t(c)$, of a message-passing scheme or of a product of marginals, and keeps the
conditional Fishers: $M_t = \sum_c p_t(c) A_t(c)$, and $\widetilde M_t$ likewise.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..envs import AbstractEnv
from ..fisher import Blocks, Fisher, Scalar
from ..graphical import Contexts
from ..objectives import Batch
from ..occupancy import AbstractOccupancy, Separators
from ..policies import AbstractPolicy, contexts_of
from .tabular import blocks_of, largest_eigenvalue, relative_error


class StructuredErrors(NamedTuple):
    """How far the Fisher of structured occupancies can be from the exact one."""

    occupancy: Float[Array, " steps"]
    r"""$\varepsilon_t = \|\widetilde p_t - p_t\|_1$, in expected visits."""
    curvature: Float[Array, " steps"]
    r"""$K_t = \max_c \|A_t(c)\|_{op}$; zero for a step without contexts."""
    fisher: Float[Array, " steps"]
    r"""$e_t = K_t \varepsilon_t \ge \|\widetilde M_t - M_t\|_{op}$."""
    total: Float[Array, ""]
    r"""$\Delta_F = \sum_t e_t \ge \|\widetilde F - F\|_{op}$."""
    relative: Float[Array, ""]
    r"""$\Delta_F / \lambda \ge \rho_\lambda$; the damped direction is controlled below 1."""


def structured_errors(
    exact: Float[Array, " contexts"],
    surrogate: Float[Array, " contexts"],
    step: Int[Array, " contexts"],
    curvature: Float[Array, " contexts"],
    damping: Scalar,
    *,
    steps: int,
) -> StructuredErrors:
    r"""What two lists of occupancies say about the Fishers that they weigh.

    Args:
        exact: $p_t(c)$, the expected visits to each context at its step.
        surrogate: $\widetilde p_t(c)$ of the same contexts.
        step: $t$ of each context; where it is not below `steps` and the occupancies differ,
            nothing is promised: $\Delta_F$ is infinite.
        curvature: $\|A_t(c)\|_{op}$ of each context; for a table $\lambda_{\max}(C(\pi_c))$, which
            is `tabular.largest_eigenvalue`.
        damping: $\lambda$.
        steps: how many steps there are.
    """
    change = jnp.abs(surrogate - exact)
    occupancy = jax.ops.segment_sum(change, step, steps)
    # A step without contexts has the maximum of nothing, which is minus infinity.
    largest = jnp.maximum(jax.ops.segment_max(curvature, step, steps), 0.0)
    fisher = largest * occupancy
    missed = jnp.sum(jnp.where((step >= 0) & (step < steps), 0.0, change))
    total = jnp.where(missed == 0, jnp.sum(fisher), jnp.inf)
    return StructuredErrors(occupancy, largest, fisher, total, total / damping)


def structured_certificate(
    env: AbstractEnv,
    policy: AbstractPolicy,
    occupancy: AbstractOccupancy,
    damping: Scalar,
    batch: Batch | None = None,
) -> tuple[StructuredErrors, Float[Array, ""]]:
    r"""The bound for an occupancy of contexts, and the $\rho_\lambda$ that it has, of a table.

    Args:
        env: `envs.Assignments` with a junction tree.
        policy: a table of contexts.
        occupancy: the surrogate.
        damping: $\lambda$.
        batch: trajectories, for an occupancy that needs them.
    """
    exact = blocks_of(Fisher(env, policy, Separators()(env, policy)))
    other = blocks_of(Fisher(env, policy, occupancy(env, policy, batch)))  # type: ignore[arg-type]
    errors = errors_of(contexts_of(policy), exact, other, damping)
    return errors, relative_error(exact, other, damping)


def errors_of(
    contexts: Contexts, exact: Blocks, surrogate: Blocks, damping: Scalar
) -> StructuredErrors:
    """What the blocks of a table of contexts say, all of them in order."""
    return structured_errors(
        exact.weights,
        surrogate.weights,
        jnp.asarray(contexts.steps),
        largest_eigenvalue(exact.probs),
        damping,
        steps=contexts.num_steps,
    )
