"""A policy for sequences of tokens: linear attention over those that are there.

A token is the sum of the embeddings of what it is and of its position; one more, the start, stands
before all of them, so that an empty sequence has one too. `attention.py` has the layers.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..envs import State
from .attention import Dense, Layer, Norm, parts_of_heads
from .base import AbstractPolicy
from .network import Cached, Computed


class SequenceTransformer(AbstractPolicy):
    """Logits from the start token, or those of each position from its own.

    Attributes:
        letters: an embedding for each token.
        positions: an embedding for each.
        start: the embedding of the start.
        layers: of attention.
        last: the normalisation after them.
        head: from a token to logits.
        tokens: of a state; -1 where there is none.
        heads: of the attention.
        by_position: whether the actions are those of each position, one after the other.
    """

    letters: Float[Array, "letters width"]
    positions: Float[Array, "positions width"]
    start: Float[Array, "1 width"]
    layers: tuple[Layer, ...]
    last: Norm
    head: Dense
    tokens: Cached | Computed
    heads: int = eqx.field(static=True)
    by_position: bool = eqx.field(static=True)

    def __call__(self, state: State) -> Float[Array, " outputs"]:
        return self.evaluate(self.tokens(state)[None])[0]

    def many(
        self, states: State, live: Bool[Array, " n"] | None = None
    ) -> Float[Array, "n outputs"]:
        return self.evaluate(jax.vmap(self.tokens)(states))

    def evaluate(self, tokens: Int[Array, "states positions"]) -> Float[Array, "states outputs"]:
        """The logits of states, from their tokens."""
        states, width = len(tokens), self.start.shape[1]
        # A product with zeros and ones: its derivative is faster than adding to rows one by one.
        code = jax.nn.one_hot(tokens, len(self.letters), dtype=self.letters.dtype)
        start = jnp.broadcast_to(self.start, (states, 1, width))
        x = jnp.concatenate([start, code @ self.letters + self.positions], axis=1)
        live = jnp.pad(tokens >= 0, ((0, 0), (1, 0)), constant_values=True)
        heads = parts_of_heads(width, self.heads)
        for layer in self.layers:
            x = layer(x, heads, live)
        if self.by_position:
            return self.head(self.last(x[:, 1:])).reshape(states, -1)
        return self.head(self.last(x[:, 0]))
