r"""The trajectory Fisher by its definition, over all trajectories of a small environment.

`thm:riemannian_policy_induced` and what follows from it, for any policy: a table, a shared
network, a hierarchy.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from natgfn.certify import Bound, Identity
from natgfn.fisher import Fisher
from natgfn.occupancy import Exact
from natgfn.policies import AbstractPolicy, forward_probs, masked_log_softmax
from natgfn.sampling import every_trajectory, taken
from natgfn.statespace import StateSpace, occupancy


class PathScores(NamedTuple):
    """Every trajectory, with its probability and its scores."""

    probs: Float[Array, " n"]
    r"""$q_\theta(\tau)$."""
    steps: Float[Array, "times n p"]
    r"""$u_t = \nabla_\theta \log \pi_\theta(a_t \mid s_t)$, zero after the end."""
    objects: Int[Array, " n"]
    """The number of the object that each trajectory makes."""

    @property
    def scores(self) -> Float[Array, "n p"]:
        r"""$z(\tau) = \sum_t u_t$."""
        return jnp.sum(self.steps, axis=0)

    @property
    def fisher(self) -> Float[Array, "p p"]:
        r"""`eq:exact_fisher_main`: the second moment of $z$, cross-time terms and all."""
        return self.scores.T @ (self.probs[:, None] * self.scores)

    def spectrum(self, cutoff: float = 1e-11) -> tuple[Float[Array, "k p"], Float[Array, " k"]]:
        r"""Eigenvectors of $F$ as rows, and roots of their eigenvalues; zero rows for its kernel.

        From the singular values of $\sqrt q\, z$, which keep twice the digits.
        """
        _, roots, vectors = jnp.linalg.svd(
            jnp.sqrt(self.probs)[:, None] * self.scores, full_matrices=False
        )
        kept = roots > cutoff * roots[0]
        return jnp.where(kept[:, None], vectors, 0.0), jnp.where(kept, roots, 1.0)


def path_scores(space: StateSpace, policy: AbstractPolicy) -> PathScores:
    """List all trajectories and differentiate each of their steps."""
    paths = every_trajectory(space)
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def log_steps(flat):
        logits = jax.vmap(jax.vmap(eqx.combine(unravel(flat), static)))(paths.before)
        mask = jax.vmap(jax.vmap(space.forward_mask))(paths.before)
        return taken(masked_log_softmax(logits, mask), paths)

    log_probs = jnp.sum(log_steps(flat), axis=0)
    return PathScores(jnp.exp(log_probs), jax.jacfwd(log_steps)(flat), paths.last - space.num_inner)


def score_range(paths: PathScores, multiplier: Float[Array, " n"]) -> Identity:
    r"""`prop:score_compatible_gradient`: $h = E_q[z r]$ has no part in the kernel of $F$.

    A gradient under another law $\mu$ has $r = (\mu / q)\, \ell'(\delta)$.
    """
    h = (paths.probs * multiplier) @ paths.scores
    size = jnp.sum(paths.probs * jnp.abs(multiplier) * jnp.linalg.norm(paths.scores, axis=1))
    vectors, _ = paths.spectrum()
    return Identity((vectors @ h) @ vectors, h, size)


def score_bound(paths: PathScores, multiplier: Float[Array, " n"]) -> Bound:
    r"""$h^\top F^\dagger h \le E_q[r^2]$ (`prop:score_compatible_gradient`)."""
    h = (paths.probs * multiplier) @ paths.scores
    vectors, roots = paths.spectrum()
    return Bound(jnp.sum((vectors @ h / roots) ** 2), jnp.sum(paths.probs * multiplier**2))


def cross_time(paths: PathScores) -> Identity:
    r"""$E[u_t u_{t'}^\top] = 0$ for $t \ne t'$ (`thm:riemannian_policy_induced`)."""
    moments = jnp.einsum("n,tni,snj->tsij", paths.probs, paths.steps, paths.steps)
    times = len(paths.steps)
    cross = jnp.where(jnp.eye(times, dtype=bool)[:, :, None, None], 0.0, moments)
    return Identity(cross, jnp.zeros_like(cross), jnp.max(jnp.abs(moments)))


def temporal_fisher(paths: PathScores) -> Identity:
    r"""$F = \sum_t E[u_t u_t^\top]$ (`eq:exact_temporal_fisher_main`)."""
    summed = jnp.einsum("n,tni,tnj->ij", paths.probs, paths.steps, paths.steps)
    return Identity(paths.fisher, summed)


def occupancy_fisher(space: StateSpace, policy: AbstractPolicy, paths: PathScores) -> Identity:
    r"""$F = \sum_s d_\theta(s)\, J_s^\top C(\pi_s) J_s$ by dynamic programming.

    `eq:shared_exact_fisher_main`; for a table, `cor:exact_tabular_fisher_main`.
    """
    return Identity(paths.fisher, Fisher(space, policy, Exact()(space, policy)).as_matrix())


class TerminalFisher(NamedTuple):
    """`prop:terminal_vs_trajectory_fisher` in numbers."""

    terminal: Float[Array, "p p"]
    r"""$F_{\mathrm{term}}$, from the derivative of the terminal law."""
    hidden: Float[Array, "p p"]
    r"""$E_x[\mathrm{Cov}(z \mid x)]$: what the order of construction adds."""
    sum: Identity
    r"""$F_{\mathrm{traj}} = F_{\mathrm{term}} + E_x[\mathrm{Cov}(z \mid x)]$."""


def terminal_fisher(space: StateSpace, policy: AbstractPolicy, paths: PathScores) -> TerminalFisher:
    """Terminal against trajectory geometry; the two agree where each object has one trajectory."""
    params, static = eqx.partition(policy, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(params)

    def terminal_law(flat):
        return occupancy(space, forward_probs(space, eqx.combine(unravel(flat), static)))[1]

    q, slopes = terminal_law(flat), jax.jacfwd(terminal_law)(flat)
    terminal = slopes.T @ (slopes / jnp.where(q > 0, q, 1.0)[:, None])
    means = (slopes / jnp.where(q > 0, q, 1.0)[:, None])[paths.objects]
    rest = paths.scores - means
    hidden = rest.T @ (paths.probs[:, None] * rest)
    return TerminalFisher(terminal, hidden, Identity(paths.fisher, terminal + hidden))


def block_coupling(
    fisher: Float[Array, "p p"], block: Int[Array, " p"]
) -> tuple[Float[Array, ""], Float[Array, "p p"]]:
    """The largest entry of `fisher` between blocks, relative to all, and the blocks alone.

    Zero where the policy's factorisation is aligned with its parameters
    (`app:conditional_fisher_factorization`). `block` numbers the block of each parameter.
    """
    same = block[:, None] == block
    outside = jnp.max(jnp.where(same, 0.0, jnp.abs(fisher)))
    return outside / jnp.max(jnp.abs(fisher)), jnp.where(same, fisher, 0.0)
