r"""The Jacobian of trajectory balance at a perceptron, from its activations.

In a layer with the matrix $M$ of `policies.layers`, the gradient of the residual of trajectory $i$
is $\sum_{t} \bar a(s_t)\, g_t^\top$ over its visits, with $g_t$ the slope $e_{a_t} - \pi(s_t)$
propagated back to the layer's output. These rows of $J$ are kept where trajectories are long, for
all products with them. Where they are short, to go through the network again takes less time than
through such rows in memory: those of a few inputs are made for the Gram matrix, and not kept.
"""

from abc import abstractmethod
from functools import partial
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..policies import (
    MLP,
    Flow,
    Visits,
    activations,
    collect,
    dense,
    gates,
    matrices,
    propagate,
    with_matrices,
)
from ..sampling import (
    PathLogProbs,
    Trajectories,
    devices,
    equal_share,
    joined,
    own_columns,
    summed,
)

MOST = 2**26
"""Numbers that a tape holds at most: a quarter of a gigabyte."""

BLOCK = 2**20
"""Numbers of the rows from which the Gram matrix is summed at a time: 4 MB, for a cache."""

SHORT = 32
"""Steps of the shortest batch for which a program of its own is compiled, where trajectories can be
longer; each further program is for twice as many."""

KEPT = 12
"""States for each trajectory beyond which rows are kept."""


Layers: TypeAlias = tuple[Float[Array, "part _ _"], ...]
"""Of each trajectory of a device's own part, layer by layer."""


class AbstractTape(eqx.Module):
    """What is known of $J$ at a flow whose forward policy is a perceptron, and of which no other
    part but $\\log Z$ has parameters."""

    @abstractmethod
    def gram(self, scale: Flow | None = None, block: int = BLOCK) -> Float[Array, "n n"]:
        r"""$J D^{-1} J^\top$ for the diagonal `scale` of $D^{-1}$, ones if None.

        `block` is how many numbers are made at a time.
        """


def record(
    flow: Flow, paths: Trajectories, visits: Visits, probs: PathLogProbs
) -> AbstractTape | None:
    """The tape of trajectories whose forward policy is evaluated on the rows of `visits`; None if
    there is none, or it would be too large."""
    policy, (times, num) = flow.forward, paths.live.shape
    others = eqx.filter((flow.backward, flow.states), eqx.is_inexact_array)
    if not isinstance(policy, MLP) or jax.tree.leaves(others):
        return None
    shapes = [m.shape for m in matrices(policy)]
    known = isinstance(visits.count, int)
    keep = (min(times, visits.count / num) if known else times) > KEPT
    if num * sum(i * o if keep else times * (i + o) for i, o in shapes) > MOST:
        return None

    def inputs_of(states):
        found, _ = activations(policy, states)
        return tuple(dense(x, wide) for x, (wide, _) in zip(found, shapes, strict=True))

    inputs = inputs_of(visits.states) if known else collect(visits.states, visits.count, inputs_of)
    taken = jax.nn.one_hot(paths.actions, probs.actions.shape[-1], dtype=probs.actions.dtype)
    slopes = jnp.where(paths.live[..., None], taken - jnp.exp(probs.actions), 0)
    place = visits.place.reshape(times, num)

    def along(steps: int) -> tuple[Layers, Layers]:
        """The inputs and the propagated slopes of each layer in every visit, trajectories first."""
        at = place[:steps].T.ravel()
        there = [x[at] for x in inputs]
        back = propagate(policy, there, jnp.swapaxes(slopes[:steps], 0, 1).reshape(len(at), -1))
        return _apart(there, num), _apart(back, num)

    if not keep:
        few = None
        if known and len(inputs[0]) < num:
            few = Few.of(policy, inputs[-2], inputs[-1], place, slopes)
        return Passing(*along(times), few)

    def rows(steps: int) -> Layers:
        return tuple(jnp.swapaxes(x, 1, 2) @ g for x, g in zip(*along(steps), strict=True))

    sizes = [SHORT << k for k in range(times.bit_length()) if SHORT << k + 1 <= times] + [times]
    longest = jnp.searchsorted(jnp.array(sizes), jnp.max(paths.lengths))
    return Kept(flow, jax.lax.switch(longest, [partial(rows, size) for size in sizes]))


class Kept(AbstractTape):
    """The rows of $J$, layer by layer.

    Attributes:
        flow: where it was evaluated.
        rows: of each layer, its matrix for each trajectory.
    """

    flow: Flow
    rows: Layers

    def push(self, change: Flow) -> Float[Array, " part"]:
        """$J v$ of this device's own part."""
        num, layers = len(self.rows[0]), matrices(change.forward)
        parts = (x.reshape(num, -1) @ m.ravel() for x, m in zip(self.rows, layers, strict=True))
        return sum(parts, jnp.broadcast_to(change.log_z, num))

    def pull(self, x: Float[Array, " part"]) -> Flow:
        r"""$J^\top x$ of this device's own part."""
        layers = [(x @ rows.reshape(len(x), -1)).reshape(rows.shape[1:]) for rows in self.rows]
        still = jax.tree.map(jnp.zeros_like, eqx.filter(self.flow, eqx.is_inexact_array))
        forward = with_matrices(still.forward, layers)
        return eqx.tree_at(lambda f: [f.forward, f.log_z], still, [forward, jnp.sum(x)])

    def gram(self, scale: Flow | None = None, block: int = BLOCK) -> Float[Array, "n n"]:
        total, diagonals = _with_log_z(len(self.rows), self.rows[0], scale)
        for rows, diagonal in zip(self.rows, diagonals, strict=True):
            total = total + _in_parts(rows, None, diagonal, block)
        return summed(total)


class Passing(AbstractTape):
    """What the rows of $J$ are made from, layer by layer.

    Attributes:
        inputs: $\\bar a$ of each visit.
        slopes: $g$ of each visit, zero where padded.
        few: the last hidden layer by states, where these are fewer than trajectories.
    """

    inputs: Layers
    slopes: Layers
    few: "Few | None"

    def gram(self, scale: Flow | None = None, block: int = BLOCK) -> Float[Array, "n n"]:
        depth = len(self.inputs)
        total, diagonals = _with_log_z(depth, self.inputs[0], scale)
        for layer, (x, g, diagonal) in enumerate(
            zip(self.inputs, self.slopes, diagonals, strict=True)
        ):
            if self.few is not None and layer == depth - 2:
                total = total + equal_share(self.few.gram(diagonal))
            else:
                total = total + _in_parts(jnp.swapaxes(x, 1, 2), g, diagonal, block)
        return summed(total)


class Few(eqx.Module):
    r"""The last hidden layer in few states: there $g_j = \gamma_j(s) \sum_a w_{aj}\, e_a$ with the
    derivative $\gamma_j(s)$ of its unit $j$, so that products of rows come from pairs of states.

    Attributes:
        inputs: $\bar a(s)$.
        gates: $\gamma(s)$.
        head: $w$, the weights of the logits.
        slopes: $e_a - \pi$ of each trajectory in each state, summed over its visits.
    """

    inputs: Float[Array, "states i"]
    gates: Float[Array, "states o"]
    head: Float[Array, "actions o"]
    slopes: Float[Array, "part states actions"]

    @classmethod
    def of(
        cls,
        policy: MLP,
        inputs: Float[Array, "states i"],
        after: Float[Array, "states _"],
        place: Int[Array, "times part"],
        slopes: Float[Array, "times part actions"],
    ) -> "Few":
        """From what goes into the layer and, with a 1 appended, into the next one."""
        num = place.shape[1]
        summed = jnp.zeros((num, len(inputs), slopes.shape[-1]), slopes.dtype)
        summed = summed.at[jnp.arange(num), place].add(slopes)
        return cls(inputs, gates(after, slopes.dtype), policy.rest[-1].weight, summed)

    def gram(self, diagonal: Float[Array, "i o"] | None) -> Float[Array, "n n"]:
        """The products of rows, scaled by `diagonal`."""
        states, actions = len(self.inputs), len(self.head)
        both = (self.inputs[:, None] * self.inputs).reshape(states**2, -1)
        both = jnp.sum(both, axis=1, keepdims=True) if diagonal is None else both @ diagonal
        both = both * (self.gates[:, None] * self.gates).reshape(states**2, -1)
        heads = (self.head[:, None] * self.head).reshape(actions**2, -1)
        kernel = (both @ heads.T).reshape(states, states, actions, actions)
        kernel = jnp.swapaxes(kernel, 1, 2).reshape(2 * (states * actions,))
        slopes = self.slopes.reshape(len(self.slopes), -1)
        return joined(slopes @ kernel @ joined(slopes).T)


def _apart(visits: list[Float[Array, "_ _"]], num: int) -> Layers:
    """The visits of each of `num` trajectories, from those of all."""
    return tuple(x.reshape(num, len(x) // num, -1) for x in visits)


def _with_log_z(
    depth: int, like: Float[Array, "part _ _"], scale: Flow | None
) -> tuple[Float[Array, "n n"], tuple[Float[Array, "_ _"] | None, ...]]:
    r"""This device's share of the part of $\log Z$, and the diagonal of each layer."""
    num = len(like) * devices()
    ones = equal_share(jnp.ones((num, num), like.dtype))
    if scale is None:
        return ones, (None,) * depth
    return ones * scale.log_z, matrices(scale.forward)


def _in_parts(
    left: Float[Array, "part i _"],
    right: Float[Array, "part _ o"] | None,
    diagonal: Float[Array, "i o"] | None,
    block: int,
) -> Float[Array, "n n"]:
    """The products of rows `left @ right`, or `left`, of some inputs at a time.

    Each device has the rows of its own part, and sums over some columns of all rows.
    """
    num, wide, last = left.shape
    outs = last if right is None else right.shape[-1]
    some = max(1, min(wide, block // (num * outs)))
    root = None if diagonal is None else jnp.sqrt(diagonal)

    def part(start, size):
        rows = jax.lax.dynamic_slice_in_dim(left, start, size, axis=1)
        if right is not None:
            rows = rows @ right
        if root is not None:
            rows = rows * jax.lax.dynamic_slice_in_dim(root, start, size)
        rows = own_columns(rows.reshape(num, -1))
        return rows @ rows.T

    if some == wide:
        return part(0, wide)
    parts, zero = wide // some, jnp.zeros((num * devices(),) * 2, left.dtype)
    total = jax.lax.fori_loop(0, parts, lambda k, total: total + part(k * some, some), zero)
    return total + part(parts * some, wide % some) if wide % some else total
