r"""The layers of a perceptron as matrices $M$ from $\bar a = [\text{input}; 1]$ to their output.

The gradient of one logit, or of any slope of them, in a state is $\bar a\, g^\top$ in each layer,
with $g$ the slope propagated back to the layer's output.
"""

from itertools import chain
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from ..envs import State
from .network import MLP, Look

Matrices: TypeAlias = tuple[Float[Array, "_ _"], ...]
"""Of the layers of a network, inputs by outputs, the bias as the last row."""

Inputs: TypeAlias = Float[Array, "n _"] | Int[Array, "n _"]
"""Of a layer, with a 1 appended; a row of zeros and ones may be given by where its ones are."""


def matrices(policy: PyTree) -> Matrices:
    """The parameters of each layer; the bias is the last row."""
    if not isinstance(policy, MLP):
        raise ValueError(
            f"this solver is for multilayer perceptrons, got a {type(policy).__name__} policy; "
            "use ConjugateGradients"
        )
    weights, biases = _parameters(policy)
    return tuple(map(jnp.vstack, zip(_turn(policy, weights), biases, strict=True)))


def with_matrices(policy: MLP, layers: list[Float[Array, "_ _"]]) -> MLP:
    """The opposite of `matrices`."""
    weights, biases = _turn(policy, [m[:-1] for m in layers]), [m[-1] for m in layers]
    return eqx.tree_at(lambda p: [*chain(*_parameters(p))], policy, weights + biases)


def _parameters(policy: MLP) -> tuple[list[Any], list[Any]]:
    """The weights and the biases."""
    first = policy.first if isinstance(policy.first, Look) else policy.first.linear
    weight = first.rows if isinstance(first, Look) else first.weight
    rest = policy.rest
    return [weight, *(x.weight for x in rest)], [first.bias, *(x.bias for x in rest)]


def _turn(policy: MLP, weights: list[Any]) -> list[Any]:
    """The weight matrix of each layer, transposed: `[outputs, inputs]` to `[inputs, outputs]`, or
    back. The rows of a look-up are `[inputs, outputs]` in both."""
    first, *rest = weights
    return [first if isinstance(policy.first, Look) else first.T, *(x.T for x in rest)]


def activations(policy: MLP, states: State) -> tuple[list[Inputs], Float[Array, "n actions"]]:
    r"""$\bar a$ of each layer in every state, and the logits."""
    first, x = policy.first, jax.vmap(policy.first)(states)
    if isinstance(first, Look):
        inputs: list[Inputs] = [_append(jax.vmap(first.tokens)(states), len(first.rows))]
    else:
        inputs = [_append(jax.vmap(first.features)(states), 1)]
    for layer in policy.rest:
        x = jax.nn.leaky_relu(x)
        inputs.append(_append(x, 1))
        x = jax.vmap(layer)(x)
    return inputs, x


def propagate(
    policy: MLP, inputs: list[Inputs], slopes: Float[Array, "*k n actions"]
) -> list[Float[Array, "*k n _"]]:
    """$g$ of each layer, from slopes of the logits in every state."""
    columns = [slopes]
    for layer, after in zip(reversed(policy.rest), reversed(inputs[1:]), strict=True):
        columns.append(columns[-1] @ layer.weight * gates(after, slopes.dtype))
    return columns[::-1]


def gates(after: Float[Array, "n _"], dtype: Any) -> Float[Array, "n _"]:
    """The derivatives of the leaky ReLUs whose values, with a 1 appended, are `after`."""
    return jnp.where(after[:, :-1] >= 0, 1, 0.01).astype(dtype)


def dense(inputs: Inputs, size: int) -> Float[Array, "n size"]:
    """Inputs as numbers, also where only the places of their ones were given."""
    if jnp.issubdtype(inputs.dtype, jnp.floating):
        return inputs
    return jnp.sum(jax.nn.one_hot(inputs, size), axis=1)


def _append(x: Array, value: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, 1)), constant_values=value)
