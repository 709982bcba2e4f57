r"""Structured surrogates, step by step: `app:computational_regimes_detailed`.

Matrices are dense, $F = \sum_t M_t$ and $\widetilde F = \sum_t \widetilde M_t$. Limits are infinite
where the paper's condition is not met.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from natgfn.certify import (
    Bound,
    Identity,
    StructuredErrors,
    direction_limit,
    relative_error,
    structured_errors,
)
from natgfn.certify.surrogate import absolute_error, direction_bound
from natgfn.fisher import Scalar

from .geometry import identifiable, natural_gradient
from .trajectories import PathScores

Vector = Float[Array, " p"]
Steps = Float[Array, "steps p p"]
Occupancies = Float[Array, "steps contexts"]
Fishers = Float[Array, "contexts p p"]


def conditional_fishers(
    jacobian: Float[Array, "contexts actions p"], probs: Float[Array, "contexts actions"]
) -> Fishers:
    r"""$A(c) = J_c^\top C(\pi_c) J_c$ of a softmax policy whose logits have Jacobian $J_c$."""
    centred = jacobian - jnp.einsum("ca,cap->cp", probs, jacobian)[:, None]
    return jnp.einsum("ca,cap,caq->cpq", probs, centred, centred)


def step_fishers(occupancies: Occupancies, conditional: Fishers) -> Steps:
    r"""$M_t = \sum_c p_t(c) A(c)$."""
    return jnp.einsum("tc,cpq->tpq", occupancies, conditional)


def summary_identity(paths: PathScores, occupancies: Occupancies, conditional: Fishers) -> Identity:
    r"""$E[u_t u_t^\top] = \sum_c p_t(c) A(c)$ where the policy sees the summary only."""
    moments = jnp.einsum("n,tni,tnj->tij", paths.probs, paths.steps, paths.steps)
    return Identity(moments, step_fishers(occupancies, conditional))


def step_errors(exact: Steps, surrogate: Steps) -> Float[Array, " steps"]:
    r"""$\|\widetilde M_t - M_t\|_{op}$, the smallest $e_t$ there is."""
    return jax.vmap(absolute_error)(exact, surrogate)


def sum_bound(exact: Steps, surrogate: Steps) -> Bound:
    r"""$\|\widetilde F - F\|_{op} \le \Delta_F = \sum_t e_t$."""
    error = absolute_error(jnp.sum(exact, axis=0), jnp.sum(surrogate, axis=0))
    return Bound(error, jnp.sum(step_errors(exact, surrogate)))


class Messages(NamedTuple):
    """Two occupancies of the contexts of a policy, at every step."""

    exact: Occupancies
    r"""$p_t(c)$."""
    surrogate: Occupancies
    r"""$\widetilde p_t(c)$."""
    conditional: Fishers
    r"""$A(c)$."""

    @property
    def steps(self) -> tuple[Steps, Steps]:
        r"""$M_t$ and $\widetilde M_t$."""
        return (
            step_fishers(self.exact, self.conditional),
            step_fishers(self.surrogate, self.conditional),
        )

    def errors(self, damping: Scalar = 1.0) -> StructuredErrors:
        """What they promise about each other's Fishers."""
        steps, contexts = self.exact.shape
        return structured_errors(
            self.exact.ravel(),
            self.surrogate.ravel(),
            jnp.repeat(jnp.arange(steps), contexts),
            jnp.tile(jnp.linalg.eigvalsh(self.conditional)[:, -1], steps),
            damping,
            steps=steps,
        )


def message_bound(messages: Messages) -> Bound:
    r"""$\|\widetilde M_t - M_t\|_{op} \le K_t \varepsilon_t$, of the step with the least slack."""
    values, limits = step_errors(*messages.steps), messages.errors().fisher
    worst = jnp.argmin(jax.vmap(lambda *sides: Bound(*sides).slack)(values, limits))
    return Bound(values[worst], limits[worst])


def damped_bound(messages: Messages, damping: Scalar) -> Bound:
    r"""$\rho_\lambda \le \Delta_F / \lambda$, which is below 1 for $\lambda > \Delta_F$."""
    fisher, other = (jnp.sum(moments, axis=0) for moments in messages.steps)
    return Bound(relative_error(fisher, other, damping), messages.errors(damping).relative)


def damped_direction_bound(messages: Messages, h: Vector, damping: Scalar) -> Bound:
    r"""`eq:structured_natdir_bound_main` with $\Delta_F / \lambda$ in place of $\rho_\lambda$."""
    fisher, other = (jnp.sum(moments, axis=0) for moments in messages.steps)
    length = jnp.sqrt(h @ jnp.linalg.solve(fisher + damping * jnp.eye(len(h)), h))
    error = direction_bound(fisher, other, h, h, damping).value
    return Bound(error, direction_limit(messages.errors(damping).relative, length))


def undamped_bound(exact: Steps, surrogate: Steps, h: Vector) -> Bound:
    r"""$\|\widetilde F^\dagger h - F^\dagger h\| \le \Delta_F \|h\| /
    (\mu_+(F) (\mu_+(F) - \Delta_F))$, for two Fishers of one range."""
    fisher, other = jnp.sum(exact, axis=0), jnp.sum(surrogate, axis=0)
    here, there = identifiable(fisher), identifiable(other)
    common = jnp.max(jnp.abs(here.basis @ here.basis.T - there.basis @ there.basis.T)) < 1e-6
    total = jnp.sum(step_errors(exact, surrogate))
    gap = jnp.where(common & (total < here.floor), here.floor - total, 0.0)
    change = natural_gradient(other, h) - natural_gradient(fisher, h)
    return Bound(jnp.linalg.norm(change), total * jnp.linalg.norm(h) / (here.floor * gap))
