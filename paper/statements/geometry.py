"""Laws near each other: divergence, natural gradients, categorical blocks."""

import jax
import jax.numpy as jnp

from natgfn.certify import Identity

from ..theory import geometry, trajectories
from ..theory.instances import SIZE, grid, random_table, trajectory_law, tree
from .base import Statement


def _kl_expansion(key):
    policy_key, change_key = jax.random.split(key)
    log_law, theta = trajectory_law(grid(), random_table(grid(), policy_key))
    change = 1e-3 * jax.random.normal(change_key, theta.shape)
    # Both ways, the terms of third order cancel.
    there, quadratic = geometry.kl_expansion(log_law, theta, change)
    back, _ = geometry.kl_expansion(log_law, theta, -change)
    return Identity((there + back) / 2, quadratic)


def _trust_region(key, natural=False):
    policy_key, h_key, change_key = jax.random.split(key, 3)
    paths = trajectories.path_scores(tree(), random_table(tree(), policy_key))
    h = jax.random.normal(h_key, paths.probs.shape) * paths.probs @ paths.scores
    change = jax.random.normal(change_key, h.shape)
    if natural:
        change = geometry.natural_gradient(paths.fisher, h)
    return geometry.trust_region_bound(paths.fisher, h, change, 0.1)


def _divergence(log_q):
    """An objective that depends on the law only: from a fixed law that favours some outcomes."""
    target = jax.nn.log_softmax(jnp.sin(1.7 * jnp.arange(log_q.size)))
    return jnp.sum(jnp.exp(target) * (target - log_q))


def _reparameterisation(key, extra):
    policy_key, mix_key, place_key = jax.random.split(key, 3)
    log_law, theta = trajectory_law(tree(), random_table(tree(), policy_key))
    mix = jax.random.normal(mix_key, (theta.size, theta.size + extra)) / theta.size**0.5
    mix = mix + jnp.eye(theta.size, theta.size + extra)
    place = jax.random.normal(place_key, (theta.size + extra,))
    return geometry.reparameterisation(
        log_law, _divergence, lambda x: theta + mix @ (x + 0.1 * jnp.sin(x)), place
    )


def _local_descent(key, rate=0.3):
    log_law, theta = trajectory_law(tree(), random_table(tree(), key))
    return geometry.local_descent(log_law, _divergence, theta, rate)


def _square_root(key):
    return geometry.square_root_isometry(
        jax.nn.softmax(jax.random.normal(key, (SIZE,))), *jax.random.normal(key, (2, SIZE))
    )


def _logistic_graph(key):
    features = jax.random.normal(key, (SIZE, 3))
    return geometry.logistic_graph_fisher(features, jax.random.normal(key, (3,)))


def _exponential_family(key):
    statistics = jax.random.normal(key, (12, 4))
    return geometry.exponential_family_fisher(statistics, jax.random.normal(key, (4,)))


STATEMENTS = (
    Statement(
        "eq:prelim_kl_expansion",
        "KL of two trajectory laws is half the Fisher form, to second order",
        _kl_expansion,
        rounding=1e-3,
    ),
    Statement(
        "eq:prelim_trust_region",
        "no step of the KL ball gains more than the natural gradient",
        _trust_region,
        lambda: _trust_region(jax.random.key(0), natural=True),
    ),
    Statement(
        "eq:appendix_fisher_reparam",
        "the natural gradient moves the law alike in nonlinear coordinates",
        lambda key: _reparameterisation(key, 0),
        rounding=1e-6,
    ),
    Statement(
        "eq:appendix_fisher_reparam",
        "and in redundant ones, where only the tangent vector is invariant",
        lambda key: _reparameterisation(key, 5),
        rounding=1e-6,
    ),
    Statement(
        "eq:appendix_fisher_smooth",
        "a natural step descends at least as much as smoothness promises",
        _local_descent,
        lambda: _local_descent(jax.random.key(0), 1e-3),
    ),
    Statement(
        "eq:prelim_cat_block",
        "the softmax Fisher is Diag(p) - pp'",
        lambda key: geometry.categorical_block(jax.random.normal(key, (SIZE,))),
    ),
    Statement(
        "eq:prelim_cat_block",
        "its null space is the constants, and nothing else",
        lambda key: geometry.categorical_null(jax.random.normal(key, (SIZE,))),
        rounding=1e-6,
    ),
    Statement("eq:appendix_sqrt_map", "the square-root map is an isometry", _square_root),
    Statement("eq:appendix_expfam_fisher", "F = Hessian of A = Cov[T]", _exponential_family),
    Statement(
        "eq:appendix_logistic_graph_fisher",
        "independent edges: a sum over edges, against all graphs",
        _logistic_graph,
    ),
)
