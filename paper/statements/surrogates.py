"""What another Fisher in place of the exact one costs."""

from functools import partial

import jax
import jax.numpy as jnp

from natgfn.certify import surrogate

from ..theory.instances import SIZE, random_gradients, random_pair, shrunk
from .base import Statement


def _with_gradients(bound, pair, key):
    """A bound on the direction error, of a random pair and two gradients."""
    pair_key, gradient_key = jax.random.split(key)
    fisher, other, damping = pair(pair_key)
    return bound(fisher, other, *random_gradients(gradient_key), damping)


def _direction_tight():
    fisher, other, h, damping = shrunk(-0.6)
    return surrogate.direction_bound(fisher, other, h, 1.3 * h, damping)


def _pairing(key, side):
    pair_key, gradient_key = jax.random.split(key)
    fisher, other, damping = random_pair(pair_key)
    h, _ = random_gradients(gradient_key)
    return surrogate.pairing_bounds(fisher, other, h, damping)[side]


def _pairing_tight(side):
    fisher, other, h, damping = shrunk((0.6, -0.6)[side])
    return surrogate.pairing_bounds(fisher, other, h, damping)[side]


def _coupling(key):
    pair_key, x_key = jax.random.split(key)
    blocks, fisher, damping = random_pair(pair_key)
    return surrogate.coupling_bound(fisher, blocks, jax.random.normal(x_key, (SIZE,)), damping)


def _coupling_tight():
    blocks, fisher, h, damping = shrunk(0.6)
    return surrogate.coupling_bound(fisher, blocks, h, damping)


def _implied(key):
    blocks, fisher, damping = random_pair(key)
    return surrogate.implied_error_bound(fisher, blocks, damping)


def _implied_tight():
    blocks, fisher, _, damping = shrunk(-0.4)
    return surrogate.implied_error_bound(fisher, blocks, damping)


def _descent(key):
    pair_key, gradient_key, share_key, rate_key = jax.random.split(key, 4)
    fisher, other, damping = random_pair(pair_key)
    h, _ = random_gradients(gradient_key)
    smoothness = 2.0
    # Curvature anywhere between nothing and all that smoothness allows, in each direction.
    values, vectors = jnp.linalg.eigh(fisher + damping * jnp.eye(SIZE))
    values = values * jax.random.uniform(share_key, (SIZE,))
    rate = jax.random.uniform(rate_key, minval=0.01, maxval=1.0)
    rate = rate * 2 * (1 - surrogate.relative_error(fisher, other, damping)) / smoothness
    return surrogate.descent_bound(
        fisher,
        other,
        h,
        damping,
        curvature=smoothness * vectors * values @ vectors.T,
        smoothness=smoothness,
        rate=rate,
    )


def _descent_tight():
    fisher, other, h, damping = shrunk(-0.5)
    curvature = 2.0 * (fisher + damping * jnp.eye(SIZE))
    return surrogate.descent_bound(
        fisher, other, h, damping, curvature=curvature, smoothness=2.0, rate=0.25
    )


def _small_pair(key):
    """An absolute error below the curvature floor."""
    fisher, other, damping = random_pair(key)
    delta = surrogate.absolute_error(fisher, other)
    share = jnp.minimum(1.0, 0.95 * surrogate.curvature_floor(fisher, damping) / delta)
    return fisher, fisher + share * (other - fisher), damping


def _inverse(key):
    return surrogate.inverse_bound(*_small_pair(key))


def _inverse_tight():
    fisher, other, _, damping = shrunk(-0.5)
    return surrogate.inverse_bound(fisher, other, damping)


def _additive_tight():
    fisher, other, h, damping = shrunk(-0.5)
    return surrogate.additive_bound(fisher, other, h, 1.3 * h, damping)


def _coarse_tight():
    # No curvature, and a surrogate that sees a little along the gradient.
    h = jnp.eye(SIZE)[0]
    return surrogate.coarse_bound(
        jnp.zeros((SIZE, SIZE)), 1e-3 * jnp.outer(h, h), h, 0.999 * h, 1.0
    )


STATEMENTS = (
    Statement(
        "eq:structured_natdir_bound_main",
        "direction error, with both terms",
        partial(_with_gradients, surrogate.direction_bound, random_pair),
        _direction_tight,
    ),
    Statement(
        "thm:structure_dependent_approx",
        "pairing from below",
        lambda key: _pairing(key, 0),
        lambda: _pairing_tight(0),
    ),
    Statement(
        "thm:structure_dependent_approx",
        "pairing from above",
        lambda key: _pairing(key, 1),
        lambda: _pairing_tight(1),
    ),
    Statement(
        "thm:structure_dependent_approx",
        "F within 1 -+ gamma of the blocks, along any direction",
        _coupling,
        _coupling_tight,
    ),
    Statement(
        "thm:structure_dependent_approx",
        "rho <= gamma / (1 - gamma)",
        _implied,
        _implied_tight,
    ),
    Statement(
        "cor:surrogate_fisher_descent", "promised descent is achieved", _descent, _descent_tight
    ),
    Statement(
        "cor:additive_fisher_constants",
        "norm of the surrogate's inverse",
        _inverse,
        _inverse_tight,
    ),
    Statement(
        "eq:additive_natdir_bound_main",
        "absolute direction error",
        partial(_with_gradients, surrogate.additive_bound, _small_pair),
        _additive_tight,
    ),
    Statement(
        "cor:additive_fisher_constants",
        "the coarser bound, without a condition",
        partial(_with_gradients, surrogate.coarse_bound, random_pair),
        _coarse_tight,
    ),
)
