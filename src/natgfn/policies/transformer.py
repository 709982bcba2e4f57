r"""The paper's policy for graphs: linear attention over all pairs (`app:sachs_dag_details`).

A token for each pair $i \ne j$ is the sum of embeddings of its source, its target and whether the
edge is present; `attention.py` has the layers.

How it is computed. Before the first attention a token has one of two values, so everything up to
$\phi(k) v^\top$ is computed for those $2 d (d - 1)$ and its sum over tokens is a product with the
vector of edges. States go in chunks whose activations fit the cache, padding is skipped, and a
chunk's activations are computed again for its gradient.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ..envs import AbstractEnv, AbstractFilled, Dag, Dags, HasTokens
from ..errors import require_whole
from ..statespace import StateSpace
from .attention import Dense, Layer, Norm, parts_of_heads
from .base import DEEPEST, AbstractDesign, AbstractPolicy
from .network import seen
from .sequence_transformer import SequenceTransformer

CHUNK = 32
"""States whose activations are computed together."""


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
        heads = parts_of_heads(width, self.heads)
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
            x = layer(x, heads)
        x = self.last(x)
        return jnp.concatenate([self.edge(x)[..., 0], self.stop(jnp.mean(x, axis=1))], axis=1)


def present(edges: Bool[Array, "d d"]) -> Float[Array, " tokens"]:
    """Whether each pair is joined, in the order of the actions."""
    off_diagonal = np.nonzero(~np.eye(len(edges), dtype=bool))
    return edges[off_diagonal].astype(float)


class Transformer(AbstractDesign):
    """Linear attention over the pairs of a graph (`LinearTransformer`), or over the tokens of a
    sequence (`SequenceTransformer`); by default as large as the paper's.

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
        require_whole("depth", self.depth, 1, DEEPEST)
        require_whole("feed", self.feed, 1)
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, got {self.width}, {self.heads}")

    def __call__(
        self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None
    ) -> LinearTransformer | SequenceTransformer:
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

        if isinstance(env, Dags) and outputs is None:
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
        original = env.env if isinstance(env, StateSpace) else env
        if not isinstance(original, HasTokens):
            raise ValueError(
                "a Transformer has a logit for each edge of a graph and for stopping (envs.Dags), "
                f"or reads tokens (envs.HasTokens), got {type(original).__name__}: use "
                "policies.Network"
            )
        positions = jax.eval_shape(original.tokens, jax.eval_shape(original.init)).size
        by_position = isinstance(original, AbstractFilled) and outputs is None
        each = env.num_actions // positions if by_position else outputs or env.num_actions
        return SequenceTransformer(
            embedding(original.num_tokens),
            embedding(positions),
            embedding(1),
            tuple(layer() for _ in range(self.depth)),
            norm(),
            dense(width, each),
            seen(env, "tokens", np.int32),
            self.heads,
            by_position,
        )
