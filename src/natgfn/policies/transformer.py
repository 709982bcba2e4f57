r"""The paper's policy for graphs: linear attention over all pairs (`app:sachs_dag_details`).

A token for each pair $i \ne j$ is the sum of embeddings of its source, its target and whether the
edge is present. A layer is
$$x \leftarrow x + \mathrm{Attention}(\mathrm{LN}\, x), \qquad
  x \leftarrow x + W_2\, \mathrm{relu}(W_1\, \mathrm{LN}\, x),$$
with $\phi(u) = \mathrm{elu}(u) + 1$ and, in each head,
$$\mathrm{Attention}_n = \frac{\phi(q_n)^\top \sum_m \phi(k_m) v_m^\top}
  {\phi(q_n)^\top \sum_m \phi(k_m)}\, W_o.$$

How it is computed. Before the first attention a token has one of two values, so everything up to
$\phi(k) v^\top$ is computed for those $2 d (d - 1)$ and its sum over tokens is a product with the
vector of edges. $W_o$ is applied to the $\sum_m \phi(k_m) v_m^\top$ of a state instead of to its
tokens. States go in chunks whose activations fit the cache, padding is skipped, and a chunk's
activations are computed again for its gradient.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..envs import AbstractEnv, Dag, Dags
from .base import AbstractDesign, AbstractPolicy

CHUNK = 32
"""States whose activations are computed together."""


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
        share = (1 / total) @ jnp.asarray(heads.T, q.dtype)
        return (q * share) @ mixed + self.out.bias

    def feed(self, x: Float[Array, "*n width"]) -> Float[Array, "*n width"]:
        return x + self.down(jax.nn.relu(self.up(self.middle(x))))


class LinearTransformer(AbstractPolicy):
    """A logit for each edge from its token, and one for stopping from the mean of all."""

    source: Float[Array, "d width"]
    target: Float[Array, "d width"]
    presence: Float[Array, "2 width"]
    layers: tuple[Layer, ...]
    last: Norm
    edge: Dense
    stop: Dense
    heads: int = eqx.field(static=True)

    def __call__(self, state: Dag) -> Float[Array, " actions"]:
        return self.evaluate(present(state.edges)[None])[0]

    @property
    def by_visits(self) -> bool:
        return False

    def many(self, states: Dag, live: Bool[Array, " n"] | None = None) -> Float[Array, "n actions"]:
        edges = jax.vmap(present)(states.edges)
        count = len(edges)
        if live is None:
            live = jnp.ones(count, bool)
        size = min(CHUNK, count)
        chunks = math.ceil(count / size)
        # Live states first, by counting: sorting would take ten times longer.
        place = jnp.where(live, jnp.cumsum(live) - 1, chunks * size)
        order = jnp.zeros(chunks * size, int).at[place].set(jnp.arange(count), mode="drop")

        def on_chunk(start):
            some = edges[jax.lax.dynamic_slice(order, (start,), (size,))]
            return self.evaluate(some)

        def skip(start):
            return jnp.zeros((size, edges.shape[1] + 1), self.source.dtype)

        alive = jnp.sum(live)
        found = jax.lax.map(
            lambda start: jax.lax.cond(start < alive, jax.checkpoint(on_chunk), skip, start),
            size * jnp.arange(chunks),
        )
        return found.reshape(chunks * size, -1)[jnp.minimum(place, chunks * size - 1)]

    def evaluate(self, edges: Float[Array, "states tokens"]) -> Float[Array, "states actions"]:
        """The logits of states, of which each token says whether its edge is present."""
        states, tokens = edges.shape
        width = self.source.shape[1]
        heads = np.arange(width)[:, None] // (width // self.heads) == np.arange(self.heads)
        off_diagonal = np.nonzero(~np.eye(len(self.source), dtype=bool))
        pairs = self.source[off_diagonal[0]] + self.target[off_diagonal[1]]

        first, *rest = self.layers
        either = pairs + self.presence[:, None]
        q, k, v = first.features(either)
        sums = jnp.einsum("ptk,ptv->ptkv", k, v).reshape(2, tokens, width**2)
        products = jnp.sum(sums[0], axis=0) + edges @ (sums[1] - sums[0])
        keys = jnp.sum(k[0], axis=0) + edges @ (k[1] - k[0])
        x, q = (y[0] + edges[..., None] * (y[1] - y[0]) for y in (either, q))
        products = products.reshape(states, width, width)
        x = first.feed(x + first.attend(q, products, keys, heads))
        for layer in rest:
            q, k, v = layer.features(x)
            products = jnp.einsum("stk,stv->skv", k, v)
            x = layer.feed(x + layer.attend(q, products, jnp.sum(k, axis=1), heads))
        x = self.last(x)
        return jnp.concatenate([self.edge(x)[..., 0], self.stop(jnp.mean(x, axis=1))], axis=1)


def present(edges: Bool[Array, "d d"]) -> Float[Array, " tokens"]:
    """Whether each pair is joined, in the order of the actions."""
    off_diagonal = np.nonzero(~np.eye(len(edges), dtype=bool))
    return edges[off_diagonal].astype(float)


class Transformer(AbstractDesign):
    """What a `LinearTransformer` looks like; the paper's by default.

    Attributes:
        width: of a token.
        depth: layers.
        heads: of the attention.
        feed: the width of the feed-forward networks.
    """

    width: int = 64
    depth: int = 2
    heads: int = 4
    feed: int = 128

    def __check_init__(self):
        if self.heads < 1 or self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width}, {self.heads}")

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None
    ) -> LinearTransformer:
        if not isinstance(env, Dags) or outputs is not None:
            raise ValueError("a Transformer has a logit for each edge of a graph and for stopping")
        keys = iter(jax.random.split(key, 5 + 4 * self.depth))
        width = self.width

        def embedding(count: int) -> Float[Array, "count width"]:
            return jax.random.normal(next(keys), (count, width)) / math.sqrt(3)

        def dense(inputs: int, outputs: int) -> Dense:
            bound = 1 / math.sqrt(inputs)
            weight = jax.random.uniform(next(keys), (inputs, outputs), minval=-bound, maxval=bound)
            return Dense(weight, jnp.zeros(outputs))

        def norm() -> Norm:
            return Norm(jnp.ones(width), jnp.zeros(width))

        def layer() -> Layer:
            return Layer(
                norm(),
                dense(width, 3 * width),
                dense(width, width),
                norm(),
                dense(width, self.feed),
                dense(self.feed, width),
            )

        return LinearTransformer(
            embedding(env.size),
            embedding(env.size),
            embedding(2),
            tuple(layer() for _ in range(self.depth)),
            norm(),
            dense(width, 1),
            dense(width, 1),
            self.heads,
        )
