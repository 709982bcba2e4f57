"""Occupancies by structure or by sampling in place of exact ones, step by step."""

import jax
import jax.numpy as jnp

from natgfn.certify import Identity

from ..theory import consistency, structured
from ..theory.geometry import identifiable, natural_gradient
from ..theory.instances import SIZE, random_psd, summarised
from .base import Statement

_REGIMES = "app:computational_regimes_detailed"
_SAMPLED = "prop:appendix_mc_regime"


def _steps(key, count=4):
    """Second moments of any rank, and others at any distance."""
    share_key, *keys = jax.random.split(key, 2 * count + 1)
    moments = jax.vmap(random_psd)(jnp.stack(keys))
    share = 10 ** jax.random.uniform(share_key, (count, 1, 1), minval=-3, maxval=0)
    return moments[:count], (1 - share) * moments[:count] + share * moments[count:]


def _sum_tight():
    # Every step errs in the same direction.
    exact, _ = _steps(jax.random.key(0))
    sizes = 0.1 * jnp.arange(1.0, 1 + len(exact))
    return structured.sum_bound(exact, exact.at[:, 0, 0].add(sizes))


def _summary(key):
    found = summarised(key)
    return structured.summary_identity(found.paths, found.occupancies, found.conditional)


def _messages(key):
    """Exact occupancies, and others that are nonnegative too."""
    policy_key, change_key, size_key = jax.random.split(key, 3)
    found = summarised(policy_key)
    size = 10 ** jax.random.uniform(size_key, minval=-3, maxval=0)
    change = size * jax.random.normal(change_key, found.occupancies.shape)
    other = jnp.abs(found.occupancies + change)
    return structured.Messages(found.occupancies, other, found.conditional)


def _concentrated(exact, surrogate):
    """One step, with all of its mass in the context of the largest conditional Fisher."""
    conditional = summarised(jax.random.key(0)).conditional
    norms = jnp.linalg.eigvalsh(conditional)[:, -1]
    there = jax.nn.one_hot(jnp.argmax(norms), len(norms))[None]
    return structured.Messages(exact * there, surrogate * there, conditional)


def _damping(key, messages):
    r"""Anywhere above $\Delta_F$."""
    return messages.errors().total * 10 ** jax.random.uniform(key, minval=0.01, maxval=2)


def _damped(key):
    message_key, damping_key = jax.random.split(key)
    messages = _messages(message_key)
    return structured.damped_bound(messages, _damping(damping_key, messages))


def _damped_tight():
    # Mass where the policy never is.
    return structured.damped_bound(_concentrated(0.0, 0.5), 10.0)


def _damped_direction(key):
    message_key, damping_key, h_key = jax.random.split(key, 3)
    messages, h = _messages(message_key), jax.random.normal(h_key, (SIZE,))
    return structured.damped_direction_bound(messages, h, _damping(damping_key, messages))


def _damped_direction_tight():
    messages = _concentrated(1e-3, 0.0)
    h = jnp.linalg.eigh(messages.steps[0][0])[1][:, -1]
    return structured.damped_direction_bound(messages, h, 10.0)


def _undamped(key, count=3):
    """Fishers with one null space, not empty, and an error below the least curvature."""
    basis_key, rank_key, share_key, h_key, *keys = jax.random.split(key, 6)
    basis, _ = jnp.linalg.qr(jax.random.normal(basis_key, (SIZE, SIZE)))
    basis = jnp.where(jnp.arange(SIZE) < jax.random.randint(rank_key, (), 1, SIZE), basis, 0.0)
    roots = [basis @ jax.random.normal(k, (count, SIZE, SIZE)) for k in keys]
    exact, other = (root @ root.mT for root in roots)
    whole = jnp.sum(structured.step_errors(exact, other))
    floor = identifiable(jnp.sum(exact, axis=0)).floor
    share = jax.random.uniform(share_key, minval=0.01, maxval=0.97)
    share = jnp.minimum(share * floor / whole, 1.0)
    h = basis @ jax.random.normal(h_key, (SIZE,))
    return structured.undamped_bound(exact, (1 - share) * exact + share * other, h)


def _undamped_tight():
    h = jnp.eye(SIZE)[0]
    fisher = jnp.diag(jnp.arange(SIZE) < SIZE - 2).astype(float)
    exact = jnp.stack([fisher, fisher])
    return structured.undamped_bound(exact, exact.at[:, 0, 0].add(-0.3), h)


def _sampling(key, other_law):
    """Of a policy near uniform, from its own law or from another."""
    policy_key, law_key, multiplier_key = jax.random.split(key, 3)
    paths = summarised(policy_key, 0.2).paths
    law = paths.probs
    if other_law:
        law = jax.nn.softmax((jnp.log(law) + jax.random.normal(law_key, law.shape)) / 2)
    multiplier = jax.random.normal(multiplier_key, law.shape)
    return consistency.Sampling(paths, law, multiplier)


_SIZES, _DRAWS = (256, 2048, 16_384), 128


def _rates(key, other_law):
    """Of the median error, so that a batch without an inverse may count as infinitely far."""
    sampling_key, *keys = jax.random.split(key, 1 + len(_SIZES))
    sampling = _sampling(sampling_key, other_law)
    found = [
        consistency.batch_errors(sampling, 0.01, size, _DRAWS, key=batch_key)
        for size, batch_key in zip(_SIZES, keys, strict=True)
    ]
    medians = jnp.stack([jnp.sort(jnp.stack(errors))[:, _DRAWS // 2] for errors in found])
    sizes = jnp.array(_SIZES, float)
    rates = jax.vmap(consistency.measured_rate, (None, 1))(sizes, medians)
    return Identity(rates, jnp.full_like(rates, -0.5))


def _batch(key):
    """The exact Fisher, and the two estimates of a batch."""
    sampling_key, batch_key = jax.random.split(key)
    sampling = _sampling(sampling_key, other_law=True)
    return sampling.paths.fisher, *sampling.estimates(4096, key=batch_key)


def _restriction(key):
    fisher, sampled, _ = _batch(key)
    return consistency.restriction_bound(fisher, sampled)


def _restriction_tight():
    fisher = jnp.diag(jnp.arange(SIZE, dtype=float))
    return consistency.restriction_bound(fisher, fisher.at[1, 1].add(-0.4))


def _unrestricted(key):
    fisher, sampled, h = _batch(key)
    projected = consistency.projected_direction(fisher, sampled, h)
    return Identity(natural_gradient(sampled, h), projected)


STATEMENTS = (
    Statement(
        _REGIMES, "occupancies of summaries times conditional Fishers, at every step", _summary
    ),
    Statement(
        _REGIMES,
        "errors of steps add up",
        lambda key: structured.sum_bound(*_steps(key)),
        _sum_tight,
    ),
    Statement(
        _REGIMES,
        "messages: the error of a step is at most K_t eps_t",
        lambda key: structured.message_bound(_messages(key)),
        lambda: structured.message_bound(_concentrated(0.5, 0.6)),
    ),
    Statement(_REGIMES, "messages, damped: rho <= Delta_F / lambda < 1", _damped, _damped_tight),
    Statement(
        _REGIMES,
        "and the direction error that this allows",
        _damped_direction,
        _damped_direction_tight,
    ),
    Statement(
        _REGIMES,
        "undamped, on a common range: direction error",
        _undamped,
        _undamped_tight,
    ),
    Statement(
        _SAMPLED,
        "rate -1/2 in N, within 30%: Fisher, damped and projected direction, on-policy",
        lambda key: _rates(key, other_law=False),
        rounding=0.3,
    ),
    Statement(
        _SAMPLED,
        "the same, importance-weighted",
        lambda key: _rates(key, other_law=True),
        rounding=0.3,
    ),
    Statement(
        _SAMPLED,
        "the projected inverse exists as soon as F_N is within mu_+ of F",
        _restriction,
        _restriction_tight,
    ),
    Statement(
        _SAMPLED,
        "there the unrestricted pseudo-inverse is the same: F_N keeps to the range of F",
        _unrestricted,
        rounding=1e-6,
    ),
)
