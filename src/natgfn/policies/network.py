"""Policies that share parameters between states: multilayer perceptrons."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Num, PRNGKeyArray

from ..envs import AbstractEnv, Identical, OnGrid, State
from ..errors import require_whole
from ..statespace import StateSpace
from .base import DEEPEST, AbstractDesign, AbstractPolicy


class Cached(eqx.Module):
    """What is known of each state of an enumerated environment: integers, which nothing trains."""

    table: Int[np.ndarray, "states numbers"]

    def __call__(self, state: Int[Array, ""]) -> Int[Array, " numbers"]:
        return jnp.asarray(self.table)[state]


class Computed(eqx.Module):
    """What an environment says of a state, whenever it is asked.

    Attributes:
        of: the environment, static: nothing trains its arrays.
        method: the name of what is asked.
    """

    of: Identical = eqx.field(static=True)
    method: str = eqx.field(static=True)

    def __call__(self, state: State) -> Num[Array, " numbers"]:
        return getattr(self.of.env, self.method)(state)


class Look(eqx.Module):
    """The first layer on one-hot coordinates: a look-up and a sum, never a dense product.

    Attributes:
        rows: one for each value of each coordinate.
        bias: added to their sum.
        coordinates: of a state.
        starts: the row of value 0 of each coordinate.
    """

    rows: Float[Array, "tokens width"]
    bias: Float[Array, " width"]
    coordinates: Cached | Computed
    starts: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, state: State) -> Float[Array, " width"]:
        x = self.bias
        for token in self.tokens(state):  # one by one: a sum over few is slow
            x = x + self.rows[token]
        return x

    def tokens(self, state: State) -> Int[Array, " dims"]:
        """The rows of a state."""
        return self.coordinates(state) + jnp.array(self.starts, jnp.int32)

    def many(self, states: State) -> Float[Array, "n width"]:
        """Of many states: its derivative is a dense product, many times faster than adding to
        rows one by one."""
        tokens = jax.vmap(self.tokens)(states)
        return _look_up(self.rows, tokens) + self.bias


@jax.custom_jvp
def _look_up(
    rows: Float[Array, "tokens width"], tokens: Int[Array, "n dims"]
) -> Float[Array, "n width"]:
    found = rows[tokens[:, 0]]
    for token in tokens.T[1:]:  # one by one: a sum over few is slow
        found = found + rows[token]
    return found


@_look_up.defjvp
def _look_up_jvp(primals: Any, tangents: Any) -> tuple[Array, Array]:
    rows, tokens = primals
    code = jnp.sum(jax.nn.one_hot(tokens, len(rows), dtype=rows.dtype), axis=1)
    return _look_up(rows, tokens), code @ tangents[0]


class Read(eqx.Module):
    """The first layer on what the environment shows of a state.

    Attributes:
        linear: applied to the features.
        observation: of a state; the bits of float32 numbers where it is cached.
    """

    linear: eqx.nn.Linear
    observation: Cached | Computed

    def __call__(self, state: State) -> Float[Array, " width"]:
        return self.linear(self.features(state))

    def many(self, states: State) -> Float[Array, "n width"]:
        """Of many states."""
        return jax.vmap(self)(states)

    def features(self, state: State) -> Float[Array, " features"]:
        seen = self.observation(state)
        if isinstance(self.observation, Cached):
            seen = jax.lax.bitcast_convert_type(seen, jnp.float32)
        return seen.astype(self.linear.weight.dtype)


class MLP(AbstractPolicy):
    """A multilayer perceptron with leaky ReLUs."""

    first: Look | Read
    rest: tuple[eqx.nn.Linear, ...]

    def __call__(self, state: State) -> Float[Array, " actions"]:
        x = self.first(state)
        for layer in self.rest:
            x = layer(jax.nn.leaky_relu(x))
        return x

    def many(
        self, states: State, live: Bool[Array, " n"] | None = None
    ) -> Float[Array, "n actions"]:
        x = self.first.many(states)
        for layer in self.rest:
            x = jax.vmap(layer)(jax.nn.leaky_relu(x))
        return x


class Network(AbstractDesign):
    r"""Hidden layers of equal width; weights start uniform in $\pm 1 / \sqrt{\text{inputs}}$.

    On a grid (`envs.OnGrid`) the input is the one-hot code of each coordinate, elsewhere what the
    environment's `observe` gives. Where states are enumerated it is computed once for each.

    Attributes:
        width: of each hidden layer.
        depth: how many hidden layers.
    """

    width: int = 32
    depth: int = 2

    def __check_init__(self):
        require_whole("width", self.width, 1)
        require_whole("depth", self.depth, 1, DEEPEST)

    def __call__(self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None) -> MLP:
        first_key, *keys = jax.random.split(key, self.depth + 1)
        sizes = [self.width] * (self.depth - 1) + [outputs or env.num_actions]
        rest = [eqx.nn.Linear(self.width, n, key=k) for n, k in zip(sizes, keys, strict=True)]
        return MLP(self._first(env, first_key), tuple(rest))

    def _first(self, env: AbstractEnv, key: PRNGKeyArray) -> Look | Read:
        original = env.env if isinstance(env, StateSpace) else env
        if isinstance(original, OnGrid):
            starts = np.cumsum([0, *original.sides]).tolist()
            linear = eqx.nn.Linear(starts[-1], self.width, key=key)
            assert linear.bias is not None
            coordinates = seen(env, "coordinates", np.int32)
            return Look(linear.weight.T, linear.bias, coordinates, tuple(starts[:-1]))
        inputs = jax.eval_shape(original.observe, original.init()).size
        linear = eqx.nn.Linear(inputs, self.width, key=key)
        return Read(linear, seen(env, "observe", np.float32))


def seen(env: AbstractEnv, name: str, kind: type) -> Cached | Computed:
    """A method of the environment: a table of its values, or the method itself."""
    if not isinstance(env, StateSpace):
        return Computed(Identical(env), name)
    with jax.ensure_compile_time_eval():  # also where a network is made in a compiled function
        values = jax.vmap(getattr(env.env, name))(jax.tree.map(jnp.asarray, env.states))
    return Cached(np.asarray(values).astype(kind).view(np.int32))
