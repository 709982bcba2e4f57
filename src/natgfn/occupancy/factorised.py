"""The structured regime on grids: a product of coordinate marginals at each time."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..envs.base import OnGrid
from ..fisher import Occupancy
from ..policies import AbstractPolicy, forward_probs, masked_softmax
from ..statespace import StateSpace, require_space, timed_occupancy
from .base import AbstractOccupancy

ROUTES = ("joint", "pairs", "direct")


class Factorised(AbstractOccupancy):
    r"""$\widetilde m_t(x, y) = m_{x,t}(x)\, m_{y,t}(y)$ (`app:computational_regimes_detailed`).

    Where trajectories may stop early, $m_t$ is a sub-probability: it is normalised, factorised,
    and given its mass back. A product may also have mass where no state is; that mass is lost,
    so the weights add up to less than the mean length of a trajectory.

    Attributes:
        route: where the marginals come from. `joint`: from the exact joint occupancy, so this
            measures what the assumption costs, and saves nothing. `pairs`: the same with
            marginals of neighbouring coordinates, $\prod_d m(x_d, x_{d+1}) / \prod_d m(x_d)$ over
            the inner ones, which is exact in two dimensions. `direct`: propagated from one time
            to the next under the assumption itself, with no joint anywhere: beside the weights
            it needs the marginals of one time and a block of states.
    """

    route: str = "joint"

    def __check_init__(self):
        if self.route not in ROUTES:
            raise ValueError(f"route must be one of {', '.join(ROUTES)}, got {self.route!r}")

    def __call__(self, env, policy, batch=None):
        space = require_space(env, "occupancy.Factorised")
        grid = space.env
        if not isinstance(grid, OnGrid):
            raise ValueError(
                f"occupancy.Factorised needs coordinates, and {type(grid).__name__} has none: "
                "give it `sides` and `coordinates(state)` (natgfn.envs.OnGrid)"
            )
        inner = jax.tree.map(lambda x: jnp.asarray(x)[: space.num_inner], space.states)
        places = jax.vmap(grid.coordinates)(inner)
        if self.route == "direct":
            weights = _propagated(space, policy, places, grid.sides)
        else:
            joint = timed_occupancy(space, forward_probs(space, policy))
            weights = _product(joint, places, grid.sides, self.route == "pairs")
        return Occupancy(jnp.arange(space.num_inner), weights, complete=True)


def _product(
    joint: Float[Array, "times inner"],
    places: Int[Array, "inner dims"],
    sides: tuple[int, ...],
    pairs: bool,
) -> Float[Array, " inner"]:
    """The marginals of the joint, multiplied."""
    mass = jnp.sum(joint, axis=1, keepdims=True)
    total = jnp.where(mass > 0, mass, 1.0)
    singles = []
    for place, side in zip(places.T, sides, strict=True):
        indicator = jax.nn.one_hot(place, side, dtype=joint.dtype)
        marginal = jnp.matmul(joint, indicator, precision="highest")
        singles.append(marginal[:, place] / total)
    if not pairs:
        return jnp.sum(mass * math.prod(singles[1:], start=singles[0]), axis=0)
    product = singles[0]
    for d, middle in enumerate(singles[:-1]):
        both = places[:, d] * sides[d + 1] + places[:, d + 1]
        marginal = jnp.zeros((len(joint), sides[d] * sides[d + 1]), joint.dtype)
        marginal = marginal.at[:, both].add(joint)[:, both] / total
        product = product * marginal / jnp.where(middle > 0, middle, 1.0)
    return jnp.sum(mass * product, axis=0)


def _propagated(
    space: StateSpace,
    policy: AbstractPolicy,
    places: Int[Array, "inner dims"],
    sides: tuple[int, ...],
) -> Float[Array, " inner"]:
    """Coordinate messages: each time from the product of the marginals of the one before.

    What the product has where no state is cannot go on; the rest is given its share.
    """
    num, child = space.num_inner, jnp.asarray(space.child)
    size = min(_BLOCK, num)
    dtype = jax.eval_shape(policy, jnp.array(0)).dtype

    def advance(carry, _):
        mass, marginals, weights = carry

        def spread(sums, start):
            states = start + jnp.arange(size)
            fresh, states = states < num, jnp.minimum(states, num - 1)
            factors = [m[place] for m, place in zip(marginals, places[states].T, strict=True)]
            product = jnp.where(fresh, math.prod(factors[1:], start=factors[0]), 0.0)

            def move():
                here, goes_on, arrived, weights = sums
                following = child[states]
                pf = masked_softmax(jax.vmap(policy)(states), following >= 0)
                inner = (following >= 0) & (following < num)
                flow = jnp.where(inner, product[:, None] * pf, 0.0)
                after = places[jnp.where(inner, following, 0)]
                arrived = [x.at[after[..., d]].add(flow) for d, x in enumerate(arrived)]
                weights = weights.at[states].add(mass * product)
                return here + jnp.sum(product), goes_on + jnp.sum(flow), arrived, weights

            # Where time is a coordinate, most blocks are empty.
            return jax.lax.cond(jnp.any(product > 0), move, lambda: sums), None

        zero, empty = jnp.zeros((), dtype), [jnp.zeros_like(m) for m in marginals]
        first = (zero, zero, empty, weights)
        (here, goes_on, arrived, weights), _ = jax.lax.scan(spread, first, jnp.arange(0, num, size))
        total = jnp.where(goes_on > 0, goes_on, 1.0)
        mass = mass * goes_on / jnp.where(here > 0, here, 1.0)
        return (mass, [x / total for x in arrived], weights), None

    source = [jax.nn.one_hot(places[0, d], side, dtype=dtype) for d, side in enumerate(sides)]
    start = (jnp.ones((), dtype), source, jnp.zeros(num, dtype))
    return jax.lax.scan(advance, start, length=space.max_steps)[0][2]


_BLOCK = 256
"""States in a block."""
