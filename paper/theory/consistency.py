r"""How fast a sampled Fisher approaches the exact one: `prop:appendix_mc_regime`."""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from natgfn.certify import direction_limit
from natgfn.certify.tabular import blocks_of, metric, relative_error
from natgfn.fisher import Fisher, Scalar
from natgfn.objectives import TrajectoryBalance, evaluate
from natgfn.occupancy import AbstractOccupancy, Exact, Sampled
from natgfn.policies import Flow, backward_table, forward_table
from natgfn.sampling import AbstractProposal, OnPolicy, Weighting, rollout
from natgfn.statespace import StateSpace, exact_residuals


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


def measured_rate(sizes: Float[np.ndarray, " n"], errors: Float[np.ndarray, " n"]) -> float:
    r"""The slope of $\log$ error in $\log N$; $-\tfrac12$ where second moments are finite."""
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])
