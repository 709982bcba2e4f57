"""Importance weights between trajectory laws."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Weighting(eqx.Module):
    r"""How log-ratios become the weights $w_i$ and $\omega_i$ of `alg:natgrad_gflownet`.

    Attributes:
        clip: the largest weight, if any; clipping trades bias for variance.
        self_normalise: whether the weights are divided by their mean.
    """

    clip: float | None = None
    self_normalise: bool = False

    def __check_init__(self):
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip must be positive, got {self.clip}")

    def __call__(self, log_ratio: Float[Array, " n"]) -> Float[Array, " n"]:
        if self.self_normalise:
            # Subtracting the maximum first changes nothing, and cannot overflow.
            weights = jnp.exp(log_ratio - jnp.max(log_ratio))
            weights = weights / jnp.mean(weights)
        else:
            weights = jnp.exp(log_ratio)
        return weights if self.clip is None else jnp.minimum(weights, self.clip)
