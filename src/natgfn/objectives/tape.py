r"""The Jacobian of trajectory balance at a perceptron, from activations: its rows are never formed.

In a layer with the matrix $M$ of `policies.layers`, the gradient of the residual of trajectory $i$
is $\sum_{t} \bar a(s_t)\, g_t^\top$ over its visits, with $g_t$ the slope $e_{a_t} - \pi(s_t)$
propagated back to the layer. Activations are kept for each distinct state, slopes for each visit.
Products with the Jacobian and its transpose, and the Gram matrix of its rows, are sums over these.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..policies import (
    LARGE,
    MLP,
    Flow,
    Matrices,
    Visits,
    activations,
    collect,
    dense,
    fold,
    matrices,
    propagate,
    with_matrices,
)
from ..sampling import PathLogProbs, Trajectories

BLOCK = 2**21
"""Numbers of the Jacobian that the Gram matrix is summed from at a time: 8 MB, for a cache."""


class Tape(eqx.Module):
    """What a perceptron computed along a batch of trajectories.

    Attributes:
        flow: whose forward policy it is; no other part of it but $\\log Z$ has parameters.
        inputs: $\\bar a$ of each layer, a row for each distinct state.
        slopes: $g$ of each layer, a row for each visit.
        row: the distinct state of each visit.
        trajectory: that each visit belongs to.
        count: visits; there are more rows than that.
        visit: the number of the visit at each step of each trajectory.
        live: whether there is one.
    """

    flow: Flow
    inputs: tuple[Float[Array, "rows _"], ...]
    slopes: tuple[Float[Array, "visits _"], ...]
    row: Int[Array, " visits"]
    trajectory: Int[Array, " visits"]
    count: Int[Array, ""]
    visit: Int[Array, "n times"]
    live: Bool[Array, "n times"]

    @staticmethod
    def fits(flow: Flow) -> bool:
        """Whether the forward policy is a perceptron, and nothing else but log Z is trained."""
        others = eqx.filter((flow.backward, flow.states), eqx.is_inexact_array)
        return isinstance(flow.forward, MLP) and not jax.tree.leaves(others)

    @classmethod
    def of(cls, flow: Flow, paths: Trajectories, visits: Visits, probs: PathLogProbs) -> "Tape":
        """That of trajectories whose forward policy is evaluated on the rows of `visits`."""
        policy, live = flow.forward, paths.live
        assert isinstance(policy, MLP)
        sizes = [len(m) for m in matrices(policy)]

        def inputs_of(states):
            found, _ = activations(policy, states)
            return tuple(dense(x, size) for x, size in zip(found, sizes, strict=True))

        inputs = collect(visits.states, visits.count, inputs_of)
        taken = jax.nn.one_hot(paths.actions, probs.actions.shape[-1], dtype=probs.actions.dtype)
        slopes = jnp.where(live[..., None], taken - jnp.exp(probs.actions), 0)
        # Every live visit is a row of its own here: two of the same state have other slopes.
        place = jnp.cumsum(live.ravel()) - 1
        rows = live.size + LARGE
        order = (
            jnp.zeros(rows, int)
            .at[jnp.where(live.ravel(), place, rows)]
            .set(jnp.arange(live.size), mode="drop")
        )
        count, row = place[-1] + 1, visits.place[order]

        def slopes_of(part):
            row, order = part
            known = [x[row] for x in inputs]
            return tuple(propagate(policy, known, slopes.reshape(live.size, -1)[order]))

        return cls(
            flow=flow,
            inputs=inputs,
            slopes=collect((row, order), count, slopes_of),
            row=row,
            trajectory=order % live.shape[1],
            count=count,
            visit=jnp.maximum(place, 0).reshape(live.shape).T,
            live=live.T,
        )

    @property
    def size(self) -> int:
        """How many trajectories."""
        return len(self.live)

    def push(self, change: Flow) -> Float[Array, " n"]:
        """$J v$."""
        layers = matrices(change.forward)

        def of_visits(part):
            row, *slopes = part
            return sum(
                jnp.sum(x[row] @ m * g, axis=1)
                for x, m, g in zip(self.inputs, layers, slopes, strict=True)
            )

        each = collect((self.row, *self.slopes), self.count, of_visits)
        each = jnp.where(jnp.arange(each.size) < self.count, each, 0)
        zero = jnp.zeros(self.size, each.dtype)
        return zero.at[self.trajectory].add(each) + change.log_z

    def pull(self, x: Float[Array, " n"]) -> Flow:
        r"""$J^\top x$."""
        policy = self.flow.forward
        assert isinstance(policy, MLP)

        def add(total, part, start):
            row, trajectory, *slopes = part
            counts = start + jnp.arange(row.size) < self.count
            weight = jnp.where(counts, x[trajectory], 0)[:, None]
            return tuple(
                m + inputs[row].T @ (weight * g)
                for m, inputs, g in zip(total, self.inputs, slopes, strict=True)
            )

        zero = tuple(map(jnp.zeros_like, matrices(policy)))
        layers = fold((self.row, self.trajectory, *self.slopes), self.count, add, zero)
        still = jax.tree.map(jnp.zeros_like, eqx.filter(self.flow, eqx.is_inexact_array))
        forward = with_matrices(still.forward, list(layers))
        return eqx.tree_at(lambda f: [f.forward, f.log_z], still, [forward, jnp.sum(x)])

    def gram(self, scale: Flow | None = None) -> Float[Array, "n n"]:
        r"""$J D^{-1} J^\top$ for the diagonal `scale` of $D^{-1}$, ones if None."""
        known: Matrices | tuple[None, ...] = (None,) * len(self.inputs)
        total = jnp.ones((self.size, self.size), self.slopes[0].dtype)
        if scale is not None:
            known, total = matrices(scale.forward), total * scale.log_z
        for x, g, s in zip(self.inputs, self.slopes, known, strict=True):
            total = total + self._of_layer(x, g, s)
        return total

    def _of_layer(
        self,
        inputs: Float[Array, "rows i"],
        slopes: Float[Array, "visits o"],
        scale: Float[Array, "i o"] | None,
    ) -> Float[Array, "n n"]:
        """The part of a layer, from the columns of some of its outputs at a time."""
        along = inputs[self.row[self.visit]]
        back = jnp.where(self.live[..., None], slopes[self.visit], 0)
        wide, outs = inputs.shape[1], slopes.shape[1]
        blocks = -(-outs * self.size * wide // BLOCK)
        some = -(-outs // blocks)
        spare = blocks * some - outs
        # Outputs first: products of long rows are the fast ones.
        back = jnp.pad(jnp.swapaxes(back, 1, 2), ((0, 0), (0, spare), (0, 0)))
        root = None if scale is None else jnp.pad(jnp.sqrt(scale.T), ((0, spare), (0, 0)))

        def add(k, total):
            rows = jax.lax.dynamic_slice_in_dim(back, k * some, some, axis=1) @ along
            if root is not None:
                rows = rows * jax.lax.dynamic_slice_in_dim(root, k * some, some)
            rows = rows.reshape(self.size, -1)
            return total + rows @ rows.T

        return jax.lax.fori_loop(0, blocks, add, jnp.zeros((self.size,) * 2, slopes.dtype))
