"""Policies that share parameters between states: multilayer perceptrons."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..envs.base import AbstractEnv, OnGrid, State
from ..statespace import StateSpace
from .base import AbstractDesign, AbstractPolicy


class Look(eqx.Module):
    """The first layer on a one-hot input: a look-up and a sum, never a dense product.

    Attributes:
        rows: one for each value of each coordinate.
        bias: added to their sum.
        tokens: the rows of each state.
    """

    rows: Float[Array, "tokens width"]
    bias: Float[Array, " width"]
    tokens: Int[np.ndarray, "states dims"]

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " width"]:
        x = self.bias
        for token in jnp.asarray(self.tokens)[state]:  # one by one: a sum over few is slow
            x = x + self.rows[token]
        return x


class Read(eqx.Module):
    """The first layer on what the environment shows of a state.

    Attributes:
        linear: applied to the features.
        bits: the features of each state as the bits of float32: integers, which no
            training touches.
    """

    linear: eqx.nn.Linear
    bits: Int[np.ndarray, "states features"]

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " width"]:
        return self.linear(self.features(state))

    def features(self, state: Int[Array, ""]) -> Float[Array, " features"]:
        features = jax.lax.bitcast_convert_type(jnp.asarray(self.bits)[state], jnp.float32)
        return features.astype(self.linear.weight.dtype)


class Flat(eqx.Module):
    """The first layer on a state itself: all its numbers."""

    linear: eqx.nn.Linear

    def __call__(self, state: State) -> Float[Array, " width"]:
        return self.linear(self.features(state))

    def features(self, state: State) -> Float[Array, " features"]:
        numbers = jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(state)])
        return numbers.astype(self.linear.weight.dtype)


class MLP(AbstractPolicy):
    """A multilayer perceptron with leaky ReLUs."""

    first: Look | Read | Flat
    rest: tuple[eqx.nn.Linear, ...]

    def __call__(self, state: State) -> Float[Array, " actions"]:
        x = self.first(state)
        for layer in self.rest:
            x = layer(jax.nn.leaky_relu(x))
        return x


class Network(AbstractDesign):
    r"""Hidden layers of equal width; weights start uniform in $\pm 1 / \sqrt{\text{inputs}}$.

    On a grid the input is the one-hot code of each coordinate, elsewhere what the
    environment's `observe` gives; or the state itself where states are not enumerated.

    Attributes:
        width: of each hidden layer.
        depth: how many hidden layers.
    """

    width: int = 32
    depth: int = 2

    def __check_init__(self):
        for name in ("width", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def __call__(self, env: AbstractEnv, *, key: PRNGKeyArray, outputs: int | None = None) -> MLP:
        first_key, *keys = jax.random.split(key, self.depth + 1)
        sizes = [self.width] * (self.depth - 1) + [outputs or env.num_actions]
        rest = [eqx.nn.Linear(self.width, n, key=k) for n, k in zip(sizes, keys, strict=True)]
        return MLP(self._first(env, first_key), tuple(rest))

    def _first(self, env: AbstractEnv, key: PRNGKeyArray) -> Look | Read | Flat:
        if not isinstance(env, StateSpace):
            numbers = sum(np.size(x) for x in jax.tree.leaves(env.init()))
            return Flat(eqx.nn.Linear(numbers, self.width, key=key))
        if isinstance(env.env, OnGrid):
            start = np.cumsum([0, *env.env.sides])
            linear = eqx.nn.Linear(int(start[-1]), self.width, key=key)
            assert linear.bias is not None
            tokens = _of_all_states(env, env.env.coordinates) + start[:-1]
            return Look(linear.weight.T, linear.bias, tokens.astype(np.int32))
        features = _of_all_states(env, env.env.observe).astype(np.float32)
        linear = eqx.nn.Linear(features.shape[1], self.width, key=key)
        return Read(linear, features.view(np.int32))


def _of_all_states(env: StateSpace, function: Callable[[State], Array]) -> np.ndarray:
    with jax.ensure_compile_time_eval():  # also where a network is made in a compiled function
        return np.asarray(jax.vmap(function)(jax.tree.map(jnp.asarray, env.states)))
