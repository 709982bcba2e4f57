"""The structured regime on grids: a product of coordinate marginals at each time."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..envs import AbstractEnv, OnGrid
from ..fisher import Occupancy
from ..objectives import Batch
from ..policies import AbstractPolicy, Tabular, forward_probs, masked_softmax
from ..statespace import StateSpace, occupancy, require_space, timed_occupancy
from .base import AbstractOccupancy, at_visits, smaller

ROUTES = ("joint", "pairs", "direct")
"""Where the marginals of `Factorised` may come from."""


class Factorised(AbstractOccupancy):
    r"""$\widetilde m_t(x, y) = m_{x,t}(x)\, m_{y,t}(y)$ (`app:computational_regimes_detailed`).

    Where trajectories may stop early, $m_t$ is a sub-probability: it is normalised, factorised,
    and given its mass back. A product may also have mass where no state is; that mass is lost,
    so the weights add up to less than the mean length of a trajectory.

    For a table, only the states of the batch are given, if they are fewer than all: its gradient
    vanishes in the others.

    Attributes:
        route: where the marginals come from. `joint`: from the exact joint occupancy, so this
            measures what the assumption costs, and saves nothing. `pairs`: the same with
            marginals of neighbouring coordinates, $\prod_d m(x_d, x_{d+1}) / \prod_d m(x_d)$ over
            the inner ones, which is exact in two dimensions. `direct`: propagated from one time
            to the next under the assumption itself, with no joint anywhere: it keeps the
            marginals of all times, $O(T H)$ numbers, and looks at a block of states at a time.
    """

    route: str = "joint"

    def __check_init__(self):
        if self.route not in ROUTES:
            raise ValueError(f"route must be one of {', '.join(ROUTES)}, got {self.route!r}")

    def __call__(
        self, env: AbstractEnv, policy: AbstractPolicy, batch: Batch | None = None
    ) -> Occupancy:
        space = require_space(env, "occupancy.Factorised")
        grid = space.env
        if not isinstance(grid, OnGrid):
            raise ValueError(
                f"occupancy.Factorised needs coordinates, and {type(grid).__name__} has none: "
                "give it `sides` and `coordinates(state)` (natgfn.envs.OnGrid)"
            )

        def place(states):
            found = jax.tree.map(lambda x: jnp.asarray(x)[states], space.states)
            return jax.vmap(grid.coordinates)(found)

        if self.route == "direct":
            marginals = _propagated(space, policy, place, grid.sides)
        else:
            marginals = _of_joint(space, policy, place, grid.sides, self.route == "pairs")
        if isinstance(policy, Tabular) and smaller(batch, space):
            visited = place(batch.paths.before.ravel())
            return at_visits(space, batch, marginals.product(visited))
        states = jnp.arange(space.num_inner)
        return Occupancy(states, marginals.product(place(states)), complete=True)


class Marginals(NamedTuple):
    """Laws of coordinates, or of pairs of neighbours, at each time."""

    mass: Float[Array, " times"]
    """The probability that a trajectory has not ended."""
    singles: list[Float[Array, "times _"]]
    """Of each coordinate, given that."""
    pairs: list[Float[Array, "times _ _"]]
    """Of each coordinate and the next, or nothing."""

    def product(self, places: Int[Array, "n dims"]) -> Float[Array, " n"]:
        """The expected visits to places, if nothing more is known."""

        def at(weights, now: Marginals):
            factors = [m[x] for m, x in zip(now.singles, places.T, strict=True)]
            if now.pairs:
                along = zip(now.pairs, places.T[:-1], places.T[1:], strict=True)
                joined = [m[x, following] for m, x, following in along]
                # Of the first coordinate and the last there is one factor, of the others two.
                inner = [jnp.where(x > 0, x, 1.0) for x in factors[1:-1]]
                factors = [*joined, *(1 / x for x in inner)]
            return weights + now.mass * math.prod(factors[1:], start=factors[0]), None

        start = jnp.zeros(len(places), self.mass.dtype)
        return jax.lax.scan(at, start, self)[0]


Place = Callable[[Int[Array, " n"]], Int[Array, "n dims"]]
"""From states to their coordinates."""


def _of_joint(
    space: StateSpace,
    policy: AbstractPolicy,
    place: Place,
    sides: Sequence[int],
    pairs: bool,
) -> Marginals:
    """The marginals of the exact joint."""
    probs = forward_probs(space, policy)
    times = space.max_steps
    if space.graded:  # a state has one time, so the joint has one entry for each state
        joint, time = occupancy(space, probs)[0], jnp.asarray(space.level)[: space.num_inner]

        def total(*index):
            shape = (times, *(side for _, side in index))
            return jnp.zeros(shape, joint.dtype).at[time, *(x for x, _ in index)].add(joint)

    else:
        joint = timed_occupancy(space, probs)

        def total(*index):
            shape = (times, *(side for _, side in index))
            return jnp.zeros(shape, joint.dtype).at[:, *(x for x, _ in index)].add(joint)

    axes = list(zip(place(jnp.arange(space.num_inner)).T, sides, strict=True))
    singles = [total(axis) for axis in axes]
    mass = jnp.sum(singles[0], axis=1)
    share = 1 / jnp.where(mass > 0, mass, 1.0)
    joined = [total(a, b) * share[:, None, None] for a, b in pairwise(axes)]
    return Marginals(mass, [m * share[:, None] for m in singles], joined if pairs else [])


def _propagated(
    space: StateSpace,
    policy: AbstractPolicy,
    place: Place,
    sides: Sequence[int],
) -> Marginals:
    """Coordinate messages: each time from the product of the marginals of the one before.

    What the product has where no state is cannot go on; the rest is given its share.
    """
    num, child = space.num_inner, jnp.asarray(space.child)
    size = min(_BLOCK, num)
    dtype = jax.eval_shape(policy, jnp.array(0)).dtype

    def block(index):
        states = index * size + jnp.arange(size)
        return states < num, jnp.minimum(states, num - 1)

    def bounds(index):
        places = place(block(index)[1])
        return jnp.min(places, axis=0), jnp.max(places, axis=0)

    least, most = jax.lax.map(bounds, jnp.arange(math.ceil(num / size)))

    def is_met(now: Marginals) -> Bool[Array, " blocks"]:
        """Whether every coordinate has mass somewhere between the bounds of a block."""
        counts = [jnp.append(0, jnp.cumsum(m > 0)) for m in now.singles]
        along = zip(counts, least.T, most.T, strict=True)
        return jnp.all(jnp.array([c[high + 1] > c[low] for c, low, high in along]), axis=0)

    def advance(now: Marginals, _):
        met = is_met(now)

        def spread(index, sums):
            here, goes_on, arrived = sums
            fresh, states = block(index)
            factors = [m[x] for m, x in zip(now.singles, place(states).T, strict=True)]
            product = jnp.where(fresh, math.prod(factors[1:], start=factors[0]), 0.0)
            following = child[states]
            pf = masked_softmax(jax.vmap(policy)(states), following >= 0)
            inner = (following >= 0) & (following < num)
            flow = jnp.where(inner, product[:, None] * pf, 0.0).ravel()
            after = place(jnp.where(inner, following, 0).ravel()).T
            arrived = [total.at[x].add(flow) for total, x in zip(arrived, after, strict=True)]
            return here + jnp.sum(product), goes_on + jnp.sum(flow), arrived

        # Where time is a coordinate, most blocks have no mass, and those that have some are
        # neighbours: states are in the order of their times.
        zero, empty = jnp.zeros((), dtype), [jnp.zeros_like(m) for m in now.singles]
        first, last = jnp.argmax(met), len(met) - jnp.argmax(met[::-1])
        last = jnp.where(jnp.any(met), last, first)
        here, goes_on, arrived = jax.lax.fori_loop(first, last, spread, (zero, zero, empty))
        total = jnp.where(goes_on > 0, goes_on, 1.0)
        mass = now.mass * goes_on / jnp.where(here > 0, here, 1.0)
        return Marginals(mass, [x / total for x in arrived], []), now

    origin = place(jnp.array([0]))[0]
    source = [jax.nn.one_hot(x, side, dtype=dtype) for x, side in zip(origin, sides, strict=True)]
    start = Marginals(jnp.ones((), dtype), source, [])
    return jax.lax.scan(advance, start, length=space.max_steps)[1]


_BLOCK = 128
"""States in a block."""
