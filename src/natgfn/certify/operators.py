"""A Fisher as an operator on flat parameters: by its root, by products, by random rows."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from ..fisher import Fisher, Occupancy, Scalar
from .loops import one_by_one

T = TypeVar("T")


class Root(NamedTuple):
    r"""An operator $F = R^\top R$ on flat vectors."""

    forward: Callable[[Float[Array, " p"]], Float[Array, " n"]]
    transpose: Callable[[Float[Array, " n"]], Float[Array, " p"]]
    size: int
    """$p$."""

    def mv(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        return self.transpose(self.forward(x))

    def norm(self, x: Float[Array, " p"], damping: Scalar) -> Float[Array, ""]:
        r"""$\|x\|_{F + \lambda I}$."""
        return jnp.sqrt(jnp.sum(self.forward(x) ** 2) + damping * jnp.sum(x**2))

    def sketched(
        self, sketch: Float[Array, "k p"]
    ) -> tuple[Float[Array, "k k"], Float[Array, "k p"]]:
        r"""$\Omega F \Omega^\top$ and $\Omega F$."""
        # One by one: a batch of products through a network is slower than as many single ones.
        rows = jax.lax.map(self.forward, sketch)
        return rows @ rows.T, jax.lax.map(self.transpose, rows)


class Product(NamedTuple):
    r"""An operator $F \succeq 0$ on flat vectors, without a root."""

    mv: Callable[[Float[Array, " p"]], Float[Array, " p"]]
    size: int
    """$p$."""

    def norm(self, x: Float[Array, " p"], damping: Scalar) -> Float[Array, ""]:
        r"""$\|x\|_{F + \lambda I}$."""
        return jnp.sqrt(jnp.maximum(x @ self.mv(x), 0.0) + damping * jnp.sum(x**2))

    def sketched(
        self, sketch: Float[Array, "k p"]
    ) -> tuple[Float[Array, "k k"], Float[Array, "k p"]]:
        r"""$\Omega F \Omega^\top$ and $\Omega F$."""
        product = one_by_one(self.mv, sketch)
        core = sketch @ product.T
        return (core + core.T) / 2, product


def fisher_root(fisher: Fisher) -> Root:
    """The Fisher of a policy on its flattened parameters, evaluated once."""
    flat, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    line = fisher.linearise()
    shape = jax.eval_shape(line.root, unravel(flat)).shape
    return Root(
        lambda x: line.root(unravel(x)).ravel(),
        lambda y: ravel_pytree(line.transpose(y.reshape(shape)))[0],
        flat.size,
    )


_BLOCK = 128
"""Visits that are evaluated together: fewer waste less on padding, more are no faster."""
_LOGITS = 2**18
"""Logits of these together, where there are many actions: more do not fit into a cache."""


def over_blocks(fisher: Fisher, add: Callable[[Fisher, T], T], start: T) -> T:
    """Add up parts of a Fisher, a block of visits at a time, without those of weight zero.

    Memory and time are those of the visits, not of the padding or of the number of actions.
    """
    occupancy, block = fisher.occupancy, max(min(_BLOCK, _LOGITS // fisher.env.num_actions), 1)
    live = occupancy.weights != 0
    count, size = jnp.sum(live), -(-live.size // block) * block
    place = jnp.where(live, jnp.cumsum(live) - 1, size)
    order = jnp.zeros(size, int).at[place].set(jnp.arange(live.size), mode="drop")
    states, actions = jax.tree.map(lambda x: x[order], (occupancy.states, occupancy.actions))
    weights = jnp.where(jnp.arange(size) < count, occupancy.weights[order], 0.0)
    visits = Occupancy(states, weights, actions)

    def add_block(i, total):
        some = jax.tree.map(lambda y: jax.lax.dynamic_slice_in_dim(y, i * block, block), visits)
        return add(Fisher(fisher.env, fisher.policy, some), total)

    return jax.lax.fori_loop(0, -(-count // block), add_block, start)


def visits_product(fisher: Fisher) -> Product:
    """The Fisher of a policy on its flattened parameters; each product evaluates it again."""
    leaves = jax.tree.leaves(eqx.filter(fisher.policy, eqx.is_inexact_array))
    return Product(lambda x: _product(fisher, x), sum(leaf.size for leaf in leaves))


@eqx.filter_jit
def _product(fisher: Fisher, x: Float[Array, " p"]) -> Float[Array, " p"]:
    _, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    vector = unravel(x)
    return over_blocks(
        fisher, lambda part, total: total + ravel_pytree(part.mv(vector))[0], jnp.zeros_like(x)
    )


@eqx.filter_jit
def random_rows(fisher: Fisher, num: int, key: PRNGKeyArray) -> Float[Array, "num p"]:
    r"""Random rows $G$ with $\mathrm E\, G^\top G = F$, each for the price of one visit.

    A row is that of a visit, picked by its weight: of covariance $J^\top C J$, given the visit.
    """
    pick_key, noise_key = jax.random.split(key)
    visits, total = fisher.occupancy, jnp.sum(fisher.occupancy.weights)
    picked = jax.random.choice(pick_key, visits.weights.size, (num,), p=visits.weights / total)
    noise = jax.random.normal(noise_key, (num, 1, fisher.env.num_actions), total.dtype)

    def row(state, noise):
        alone = Occupancy(jax.tree.map(lambda x: x[None], state), (total / num)[None])
        line = Fisher(fisher.env, fisher.policy, alone).linearise()
        return ravel_pytree(line.transpose(noise))[0]

    return jax.vmap(row)(jax.tree.map(lambda x: x[picked], visits.states), noise)
