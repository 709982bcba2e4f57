r"""The certificate of a policy on an environment that is not enumerated.

The reference is the Fisher of many more trajectories than a batch has, and has an error of its
own. Let $A$ and $B$ be the Fishers of the two halves of its $n$ trajectories and
$\hat F = (A + B) / 2$ that of all. The error $\hat F - F$ is not known, but
$A - \hat F = (A - B) / 2$ has the same mean, zero, and the same covariance: that of one trajectory
over $n$. So $\varepsilon = \rho_\lambda$ of a half against the whole is what the error of the whole
is likely to be, and falls as $1 / \sqrt n$ (`prop:appendix_mc_regime`). If that were the error,
$\pm(\hat F - F) \preceq \varepsilon \hat F_\lambda$, then by $F_\lambda \succeq (1 - \varepsilon)
\hat F_\lambda$ the $\rho_\lambda$ against $F$ would lie between
$(\rho - \varepsilon) / (1 + \varepsilon)$ and $(\rho + \varepsilon) / (1 - \varepsilon)$. As
$A \preceq 2 \hat F$, $\varepsilon$ is at most one: near one, there are directions that only one
half has seen, and so perhaps others that none has; the reference is too small for this damping.

A product of the reference may take seconds. Outside a compiled function each is a call of the one
program that computes it, and `tell` is called after it.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from ..algorithm import Algorithm
from ..envs import AbstractEnv
from ..fisher import Fisher, Occupancy, Scalar
from ..occupancy import Exact, Factorised
from ..policies import AbstractPolicy, Flow
from ..sampling import OnPolicy, rollout
from .conditioning import movement
from .effort import Effort, Look, Vector
from .inverses import Inverse, Metric, conjugate_gradients, excess, nystrom, rows_inverse, rows_rank
from .loops import is_traced, one_by_one
from .operators import Product, over_blocks, random_rows, visits_product
from .pencil import Products, extreme_pairs


class Drawn(NamedTuple):
    """A batch, as far as a certificate needs it."""

    gradient: Vector
    """Of the forward policy."""
    visited: Occupancy
    """Where the surrogate goes; that of whole trajectories step by step."""


@eqx.filter_jit
def draw(algorithm: Algorithm, flow: Flow, key: PRNGKeyArray) -> Drawn:
    """A new batch."""
    batch, occupancy = algorithm.draw(flow, key), algorithm.rule.metric()[0]
    # These need every state, and say so.
    needed = () if isinstance(occupancy, Exact | Factorised) else (batch,)
    visited = occupancy(algorithm.env, flow.forward, *needed)
    return Drawn(ravel_pytree(batch.gradient().forward)[0], visited)


@eqx.filter_jit
def sampled_fisher(
    env: AbstractEnv, policy: AbstractPolicy, num: int, *, key: PRNGKeyArray
) -> Fisher:
    """The Fisher of the visits of `num` trajectories on-policy, one trajectory after the other."""
    paths = rollout(env, policy, OnPolicy(), num, key=key)
    states, live = jax.tree.map(
        lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), (paths.before, paths.live)
    )
    return Fisher(env, policy, Occupancy(states, jnp.where(live, 1 / num, 0.0)))


def halves(fisher: Fisher) -> tuple[Fisher, Fisher]:
    """Two Fishers, of half the visits each; their mean is the one given."""
    env, policy, visits = fisher.env, fisher.policy, fisher.occupancy

    def half(index):
        states, weights = jax.tree.map(
            lambda x: x.reshape(2, -1, *x.shape[1:])[index], (visits.states, visits.weights)
        )
        return Fisher(env, policy, Occupancy(states, 2 * weights))

    return half(0), half(1)


def look_at_visits(
    fisher: Fisher,
    visited: Occupancy,
    h: Vector,
    *,
    key: PRNGKeyArray,
    effort: Effort,
    damping: Scalar,
    tell: Callable[[], None] | None = None,
) -> Look:
    """By products alone, which forget the visits of the reference as they go."""
    sketch_key, rows_key, rho_key, half_key, gamma_key = jax.random.split(key, 5)
    surrogate, parts = Fisher(fisher.env, fisher.policy, visited), halves(fisher)
    all_, seen, left, right = map(visits_product, (fisher, surrogate, *parts))

    def told(x):
        if tell is not None and not is_traced(x):
            jax.block_until_ready(x)
            tell()
        return x

    def with_half(x):
        part = left.mv(x)
        return told((part + right.mv(x)) / 2), part

    whole = Product(lambda x: told(all_.mv(x)), all_.size)
    rows = random_rows(fisher, effort.states, rows_key)
    inverse, rank = rows_inverse(rows, damping), rows_rank(rows, damping)
    if effort.rank:
        sketch = nystrom(whole, effort.rank, sketch_key)
        inverse = sketch.inverse(damping)
        rank = jnp.sum(sketch.values / (sketch.values + damping))

    def search(both, other: Fisher, key):
        start = excess(random_rows(other, effort.states, key), inverse)
        pencil, sides = Products(both, whole.size), effort.sides == 2
        return extreme_pairs(pencil, damping, inverse, start, effort.iterations, both=sides)

    found = search(lambda x: (whole.mv(x), seen.mv(x)), surrogate, rho_key)
    numbers = {
        "rho": found.value,
        "rho_error": found.error,
        "reference_error": search(with_half, parts[0], half_key).value,
        "effective_rank": rank,
    }
    solve = conjugate_gradients(seen, damping, effort.sides * effort.iterations)
    if not effort.complete:
        return Look(numbers, None, Metric(seen, solve))
    blocks = None if effort.rank else rows_by_layer(rows, fisher.policy, damping)
    numbers["gamma"] = visits_coupling(
        whole, fisher.policy, damping, key=gamma_key, effort=effort.less(), inverse=blocks
    )
    numbers["curvature_floor"] = _floor(fisher, h)
    near = conjugate_gradients(whole, damping, effort.iterations, inverse.near)
    return Look(numbers, Metric(whole, near), Metric(seen, solve))


@eqx.filter_jit
def _floor(fisher: Fisher, h: Vector) -> Float[Array, ""]:
    """What `conditioning.directional_floor` promises along a gradient."""
    _, unravel = ravel_pytree(eqx.filter(fisher.policy, eqx.is_inexact_array))
    direction = unravel(h / jnp.maximum(jnp.linalg.norm(h), jnp.finfo(h.dtype).tiny))

    def add(part, found):
        least, moved = movement(part, direction)
        return jnp.minimum(found[0], least), found[1] + moved

    least, moved = over_blocks(fisher, add, (jnp.array(jnp.inf, h.dtype), jnp.zeros((), h.dtype)))
    return least * moved


def visits_coupling(
    fisher: Product,
    policy: AbstractPolicy,
    damping: Scalar,
    *,
    key: PRNGKeyArray,
    effort: Effort = Effort(),
    inverse: Inverse | None = None,
) -> Float[Array, ""]:
    r"""$\gamma_{B,\lambda}$ of a network's layers by products: those with the parts of a vector
    give both, block by block and all. An `inverse` of the blocks takes the place of a sketch."""
    masks = layers(policy)

    def both(x):
        parts = one_by_one(fisher.mv, masks * x)
        return jnp.sum(masks * parts, axis=0), jnp.sum(parts, axis=0)

    sketch_key, start_key = jax.random.split(key)
    if inverse is None:
        blocks = Product(lambda x: both(x)[0], fisher.size)
        inverse = nystrom(blocks, effort.rank, sketch_key).inverse(damping)
    noise = jax.random.normal(start_key, (fisher.size,), masks.dtype)
    start = jax.vmap(inverse.near)(jnp.stack([fisher.mv(noise), noise]))
    pencil = Products(both, fisher.size)
    return extreme_pairs(pencil, damping, inverse, start, effort.iterations).value


def rows_by_layer(rows: Float[Array, "num p"], policy: AbstractPolicy, damping: Scalar) -> Inverse:
    """`rows_inverse`, for the block of each layer."""
    leaves = jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array))
    ends = np.cumsum([x.size for x in leaves])[:-1].tolist()
    blocks = [rows_inverse(part, damping) for part in jnp.split(rows, ends, axis=1)]

    def near(x):
        parts = zip(blocks, jnp.split(x, ends), strict=True)
        return jnp.concatenate([block.near(part) for block, part in parts])

    return Inverse(near, lambda x: x / damping)


def layers(policy: AbstractPolicy) -> Float[Array, "layers p"]:
    """Ones for the parameters of each array, zeros for all others."""
    leaves = jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array))
    sizes = jnp.array([x.size for x in leaves])
    total = sum(x.size for x in leaves)
    layer = jnp.repeat(jnp.arange(len(leaves)), sizes, total_repeat_length=total)
    return (layer == jnp.arange(len(leaves))[:, None]).astype(leaves[0].dtype)
