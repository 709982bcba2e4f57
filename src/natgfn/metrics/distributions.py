r"""How far a terminal law $q$ is from the target $\pi = R / Z$. Everything in nats."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def total_variation(q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
    r"""$\tfrac12 \sum_x |q(x) - p(x)|$."""
    return jnp.sum(jnp.abs(q - p)) / 2


def kl_divergence(q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
    r"""$\sum_x q \log(q / p)$.

    Summed as $q \log(q/p) - q + p$, whose terms are all positive: the rounding of $q$ and $p$ to
    a sum of one does not show, however close they are.
    """
    both = (q > 0) & (p > 0)
    ratio = jnp.where(both, q, 1.0) / jnp.where(both, p, 1.0)
    # The rounding of a ratio near 1 would be all there is to its logarithm.
    change = jnp.where(both, q - p, 0.0) / jnp.where(both, p, 1.0)
    log_ratio = jnp.where(jnp.abs(change) < 0.5, jnp.log1p(change), jnp.log(ratio))
    terms = jnp.where(both, q * log_ratio - (q - p), p)
    return known(jnp.where(jnp.any((q > 0) & (p == 0)), jnp.inf, jnp.sum(terms)), q, p)


def jensen_shannon(q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, ""]:
    """The mean divergence of both laws from their mixture."""
    middle = (q + p) / 2
    return (kl_divergence(q, middle) + kl_divergence(p, middle)) / 2


def expected_log_reward(q: Float[Array, " n"], log_reward: Float[Array, " n"]) -> Float[Array, ""]:
    r"""$E_q[\log R]$, which the paper calls ELBO."""
    return known(jnp.sum(jnp.where(q > 0, q * log_reward, 0.0)), q)


def modes_found(
    q: Float[Array, " n"], p: Float[Array, " n"], modes: Bool[Array, " n"], share: float = 0.1
) -> Float[Array, ""]:
    """How many modes have at least `share` of their due probability."""
    return known(jnp.sum(modes & (q >= share * p)).astype(q.dtype), q, p)


def known(value: Float[Array, ""], *laws: Float[Array, " n"]) -> Float[Array, ""]:
    """The same, or NaN if any probability is: comparisons would make a number of it."""
    unknown = jnp.any(jnp.stack([jnp.any(jnp.isnan(law)) for law in laws]))
    return jnp.where(unknown, jnp.nan, value)
