r"""How fast a sampled Fisher approaches the exact one: `prop:appendix_mc_regime`."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from natgfn.certify import Bound, direction_limit
from natgfn.certify.surrogate import absolute_error
from natgfn.certify.tabular import blocks_of, metric, relative_error
from natgfn.fisher import Fisher, Scalar
from natgfn.objectives import TrajectoryBalance, evaluate
from natgfn.occupancy import AbstractOccupancy, Exact, Sampled
from natgfn.policies import Flow, backward_table, forward_table
from natgfn.sampling import AbstractProposal, OnPolicy, Weighting, rollout
from natgfn.statespace import StateSpace, exact_residuals

from .geometry import identifiable, natural_gradient
from .trajectories import PathScores


class DirectionErrors(NamedTuple):
    """One row a batch, for tables."""

    rho: Float[Array, " draws"]
    r"""$\rho_\lambda$ of the surrogate."""
    fisher: Float[Array, " draws"]
    r"""$\|\widetilde v - v\|_{F_\lambda} / \|v\|_{F_\lambda}$ with the exact gradient for both."""
    limit: Float[Array, " draws"]
    """What the theorem allows for it."""
    total: Float[Array, " draws"]
    """The same with the gradient of the batch as well."""


@eqx.filter_jit
def direction_errors(
    space: StateSpace,
    flow: Flow,
    size: int,
    draws: int,
    damping: Scalar,
    *,
    key: PRNGKeyArray,
    occupancy: AbstractOccupancy = Sampled(),
    proposal: AbstractProposal = OnPolicy(),
) -> DirectionErrors:
    r"""Errors of damped directions from `draws` batches of `size` trajectories.

    The gradient is that of the policy's own squared trajectory balance; a proposal is
    corrected for by importance weights, in the Fisher and in the gradient.
    """
    blocks = blocks_of(Fisher(space, flow.forward, Exact()(space, flow.forward)))
    exact = metric(blocks, damping)
    log_pf, log_pb = forward_table(space, flow.forward), backward_table(space, flow.backward)
    slopes = exact_residuals(space, log_pf, log_pb, flow.log_z).score_gradient
    h = slopes.ravel()
    v = exact.solve(h)
    length = exact.root.norm(v, damping)

    def one(key):
        paths = rollout(space, flow.forward, proposal, size, key=key)
        batch = evaluate(
            TrajectoryBalance(),
            space,
            flow,
            paths,
            proposal=proposal,
            reference=OnPolicy(),
            weighting=Weighting(),
        )
        visited = occupancy(space, flow.forward, batch)
        other = blocks_of(Fisher(space, flow.forward, visited))
        solve = metric(other, damping).solve

        def error(gradient):
            return exact.root.norm(solve(gradient) - v, damping) / length

        rho = relative_error(blocks, other, damping)
        noisy = ravel_pytree(batch.gradient().forward)[0]
        return DirectionErrors(rho, error(h), direction_limit(rho, 1.0), error(noisy))

    return jax.lax.map(one, jax.random.split(key, draws))


class BatchErrors(NamedTuple):
    """Errors of what a batch estimates, relative to it; infinite where there is no estimate."""

    fisher: Float[Array, " draws"]
    r"""$\|\widehat F_N - F\|_{op}$."""
    damped: Float[Array, " draws"]
    r"""$\|\widehat v_{N,\lambda} - v_\lambda\|$."""
    projected: Float[Array, " draws"]
    r"""$\|Q (Q^\top \widehat F_N Q)^{-1} Q^\top \widehat h_N - F^\dagger h\|$."""


class Sampling(NamedTuple):
    r"""Batches of trajectories, for the Fisher and for the gradient $h = E_q[r z]$."""

    paths: PathScores
    law: Float[Array, " n"]
    r"""$\mu(\tau)$, which trajectories are drawn from; on-policy it is $q(\tau)$."""
    multiplier: Float[Array, " n"]
    r"""$r(\tau)$."""

    def estimates(
        self, size: int, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, "p p"], Float[Array, " p"]]:
        r"""$\widehat F_N$ and $\widehat h_N$ of a batch, with weights $\omega = q / \mu$.

        The gradient has noise of its own besides, of size $N^{-1/2}$ and not in the range of $F$.
        """
        draw_key, noise_key = jax.random.split(key)
        # How often each trajectory is drawn.
        counts = jax.random.multinomial(draw_key, jnp.array(size, float), self.law)
        weights, steps = counts / size * self.paths.probs / self.law, self.paths.steps
        sampled = jnp.einsum("n,tni,tnj->ij", weights, steps, steps)
        h = (weights * self.multiplier) @ self.paths.scores
        return sampled, h + jax.random.normal(noise_key, h.shape) / size**0.5


def batch_errors(
    sampling: Sampling, damping: Scalar, size: int, draws: int, *, key: PRNGKeyArray
) -> BatchErrors:
    """Errors of `draws` batches of `size` trajectories."""
    paths = sampling.paths
    fisher, h = paths.fisher, (paths.probs * sampling.multiplier) @ paths.scores
    damped, natural = _damped_direction(fisher, h, damping), natural_gradient(fisher, h)
    largest = jnp.linalg.eigvalsh(fisher)[-1]

    def one(key):
        sampled, noisy = sampling.estimates(size, key=key)
        errors = BatchErrors(
            absolute_error(fisher, sampled) / largest,
            _distance(_damped_direction(sampled, noisy, damping), damped),
            _distance(projected_direction(fisher, sampled, noisy), natural),
        )
        # A matrix without an inverse has no Cholesky factor: NaN.
        return jax.tree.map(lambda error: jnp.where(jnp.isnan(error), jnp.inf, error), errors)

    return jax.lax.map(one, jax.random.split(key, draws), batch_size=32)


def projected_direction(
    fisher: Float[Array, "p p"], sampled: Float[Array, "p p"], h: Float[Array, " p"]
) -> Float[Array, " p"]:
    r"""$Q (Q^\top \widehat F_N Q)^{-1} Q^\top h$ with $Q$ spanning the range of $F$."""
    space = identifiable(fisher)
    factor = jnp.linalg.cholesky(space.restrict(sampled))
    return space.basis @ jsl.cho_solve((factor, True), space.basis.T @ h)


def restriction_bound(fisher: Float[Array, "p p"], sampled: Float[Array, "p p"]) -> Bound:
    r"""$\mu_+(F) - \|\widehat F_N - F\|_{op} \le \lambda_{\min}(Q^\top \widehat F_N Q)$.

    So the inverse exists as soon as $\widehat F_N$ is within $\mu_+(F)$.
    """
    space = identifiable(fisher)
    least = jnp.linalg.eigvalsh(space.restrict(sampled))[0]
    return Bound(space.floor - absolute_error(fisher, sampled), least)


def _damped_direction(fisher, h, damping):
    return jsl.cho_solve(jsl.cho_factor(fisher + damping * jnp.eye(len(h))), h)


def _distance(estimate, exact):
    return jnp.linalg.norm(estimate - exact) / jnp.linalg.norm(exact)


def measured_rate(sizes: Float[Array, " n"], errors: Float[Array, " n"]) -> Float[Array, ""]:
    r"""The slope of $\log$ error in $\log N$; $-\tfrac12$ where second moments are finite."""
    x = jnp.log(sizes) - jnp.mean(jnp.log(sizes))
    return x @ jnp.log(errors) / (x @ x)
