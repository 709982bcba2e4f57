r"""Layers of linear attention over tokens (`app:sachs_dag_details`).

A layer is
$$x \leftarrow x + \mathrm{Attention}(\mathrm{LN}\, x), \qquad
  x \leftarrow x + W_2\, \mathrm{relu}(W_1\, \mathrm{LN}\, x),$$
with $\phi(u) = \mathrm{elu}(u) + 1$ and, in each head,
$$\mathrm{Attention}_n = \frac{\phi(q_n)^\top \sum_m \phi(k_m) v_m^\top}
  {\phi(q_n)^\top \sum_m \phi(k_m)}\, W_o.$$
$W_o$ is applied to the $\sum_m \phi(k_m) v_m^\top$ of a state instead of to its tokens.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

LEAST = 1e-12
"""The smallest denominator of attention: in float32 one may be rounded to zero."""


class Norm(eqx.Module):
    """Layer normalisation."""

    scale: Float[Array, " width"]
    bias: Float[Array, " width"]

    def __call__(self, x: Float[Array, "*n width"]) -> Float[Array, "*n width"]:
        centred = x - jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.mean(centred**2, axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * self.scale + self.bias


class Dense(eqx.Module):
    """A matrix product and a bias."""

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __call__(self, x: Float[Array, "*n inputs"]) -> Float[Array, "*n outputs"]:
        return x @ self.weight + self.bias


class Layer(eqx.Module):
    """Attention and a feed-forward network, each after a normalisation and beside a sum."""

    before: Norm
    project: Dense
    """To queries, keys and values."""
    out: Dense
    middle: Norm
    up: Dense
    down: Dense

    def features(self, x: Float[Array, "*n width"]) -> tuple[Array, Array, Array]:
        r"""$\phi(q)$, $\phi(k)$ and $v$."""
        q, k, v = jnp.split(self.project(self.before(x)), 3, axis=-1)
        return jax.nn.elu(q) + 1, jax.nn.elu(k) + 1, v

    def attend(
        self,
        q: Float[Array, "states tokens width"],
        products: Float[Array, "states width width"],
        keys: Float[Array, "states width"],
        heads: Bool[np.ndarray, "width heads"],
    ) -> Float[Array, "states tokens width"]:
        r"""Attention from $\phi(q)$, $\sum_m \phi(k_m) v_m^\top$ and $\sum_m \phi(k_m)$."""
        same = jnp.asarray(heads @ heads.T, q.dtype)
        mixed = (products * same) @ self.out.weight
        total = q @ (keys[:, :, None] * jnp.asarray(heads, q.dtype))
        share = (1 / jnp.maximum(total, LEAST)) @ jnp.asarray(heads.T, q.dtype)
        return (q * share) @ mixed + self.out.bias

    def feed(self, x: Float[Array, "*n width"]) -> Float[Array, "*n width"]:
        return x + self.down(jax.nn.relu(self.up(self.middle(x))))

    def __call__(
        self,
        x: Float[Array, "states tokens width"],
        heads: Bool[np.ndarray, "width heads"],
        live: Bool[Array, "states tokens"] | None = None,
    ) -> Float[Array, "states tokens width"]:
        """Of the tokens of states; those that are not `live` are attended to by none."""
        q, k, v = self.features(x)
        if live is not None:
            k = jnp.where(live[..., None], k, 0.0)
        products = jnp.einsum("stk,stv->skv", k, v)
        return self.feed(x + self.attend(q, products, jnp.sum(k, axis=1), heads))


def parts_of_heads(width: int, heads: int) -> Bool[np.ndarray, "width heads"]:
    """Whether each number of a token belongs to each head."""
    return np.arange(width)[:, None] // (width // heads) == np.arange(heads)
