r"""The Jacobian of trajectory balance at a perceptron, from its activations.

In a layer with the matrix $M$ of `policies.layers`, the gradient of the residual of trajectory $i$
is $\sum_{t} g_t\, \bar a(s_t)^\top$ over its visits, with $g_t$ the slope $e_{a_t} - \pi(s_t)$
propagated back to the layer's output. Activations are computed once for each distinct state.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..policies import (
    MLP,
    Flow,
    Matrices,
    Visits,
    activations,
    collect,
    dense,
    matrices,
    propagate,
    with_matrices,
)
from ..sampling import PathLogProbs, Trajectories

MOST = 2**26
"""Numbers in the rows of a batch, at most: a quarter of a gigabyte."""

BLOCK = 2**21
"""Numbers of the rows that the Gram matrix is summed from at a time: 8 MB, for a cache."""

SHORT = 32
"""Steps of a batch for which a program of its own is compiled, where trajectories can be longer."""


class Tape(eqx.Module):
    """The rows of $J$, layer by layer: of a flow whose forward policy is a perceptron, and of which
    no other part but $\\log Z$ has parameters.

    Attributes:
        flow: where it was evaluated.
        rows: of each layer, the transpose of its matrix for each trajectory.
    """

    flow: Flow
    rows: tuple[Float[Array, "n _ _"], ...]

    @staticmethod
    def fits(flow: Flow, num: int) -> bool:
        """Whether there is one, and that of so many trajectories is not too large."""
        others = eqx.filter((flow.backward, flow.states), eqx.is_inexact_array)
        if not isinstance(flow.forward, MLP) or jax.tree.leaves(others):
            return False
        return num * sum(x.size for x in matrices(flow.forward)) <= MOST

    @classmethod
    def of(cls, flow: Flow, paths: Trajectories, visits: Visits, probs: PathLogProbs) -> "Tape":
        """That of trajectories whose forward policy is evaluated on the rows of `visits`."""
        policy, live = flow.forward, paths.live
        assert isinstance(policy, MLP)
        sizes = [len(m) for m in matrices(policy)]

        def inputs_of(states):
            found, _ = activations(policy, states)
            return tuple(dense(x, size) for x, size in zip(found, sizes, strict=True))

        if isinstance(visits.count, int):
            inputs = inputs_of(visits.states)
        else:
            inputs = collect(visits.states, visits.count, inputs_of)
        taken = jax.nn.one_hot(paths.actions, probs.actions.shape[-1], dtype=probs.actions.dtype)
        slopes = jnp.where(live[..., None], taken - jnp.exp(probs.actions), 0)
        place = visits.place.reshape(live.shape)
        times, num = live.shape

        def over(steps: int):
            at = place[:steps].T.ravel()
            known = [x[at] for x in inputs]
            back = propagate(policy, known, jnp.swapaxes(slopes[:steps], 0, 1).reshape(len(at), -1))
            return tuple(
                jnp.swapaxes(g.reshape(num, steps, -1), 1, 2) @ x.reshape(num, steps, -1)
                for x, g in zip(known, back, strict=True)
            )

        if times <= 2 * SHORT:
            return cls(flow, over(times))
        short = jnp.max(paths.lengths) <= SHORT
        return cls(flow, jax.lax.cond(short, lambda: over(SHORT), lambda: over(times)))

    @property
    def size(self) -> int:
        """How many trajectories."""
        return len(self.rows[0])

    def push(self, change: Flow) -> Float[Array, " n"]:
        """$J v$."""
        layers = matrices(change.forward)
        parts = (
            x.reshape(self.size, -1) @ m.T.ravel() for x, m in zip(self.rows, layers, strict=True)
        )
        return sum(parts, jnp.broadcast_to(change.log_z, self.size))

    def pull(self, x: Float[Array, " n"]) -> Flow:
        r"""$J^\top x$."""
        layers = [(x @ rows.reshape(self.size, -1)).reshape(rows.shape[1:]).T for rows in self.rows]
        still = jax.tree.map(jnp.zeros_like, eqx.filter(self.flow, eqx.is_inexact_array))
        forward = with_matrices(still.forward, layers)
        return eqx.tree_at(lambda f: [f.forward, f.log_z], still, [forward, jnp.sum(x)])

    def gram(self, scale: Flow | None = None) -> Float[Array, "n n"]:
        r"""$J D^{-1} J^\top$ for the diagonal `scale` of $D^{-1}$, ones if None."""
        known: Matrices | tuple[None, ...] = (None,) * len(self.rows)
        total = jnp.ones((self.size, self.size), self.rows[0].dtype)
        if scale is not None:
            known, total = matrices(scale.forward), total * scale.log_z
        for rows, layer in zip(self.rows, known, strict=True):
            total = total + _gram(rows, None if layer is None else jnp.sqrt(layer.T))
        return total


def _gram(rows: Float[Array, "n o i"], root: Float[Array, "o i"] | None) -> Float[Array, "n n"]:
    """The products of rows that are scaled by `root`, of some outputs at a time."""
    num, outs, wide = rows.shape
    some = max(1, min(outs, BLOCK // (num * wide)))
    blocks = outs // some

    def part(start, size):
        found = jax.lax.dynamic_slice_in_dim(rows, start, size, axis=1)
        if root is not None:
            found = found * jax.lax.dynamic_slice_in_dim(root, start, size)
        found = found.reshape(num, -1)
        return found @ found.T

    zero = jnp.zeros((num, num), rows.dtype)
    total = jax.lax.fori_loop(0, blocks, lambda k, total: total + part(k * some, some), zero)
    left = outs - blocks * some
    return total + part(blocks * some, left) if left else total
