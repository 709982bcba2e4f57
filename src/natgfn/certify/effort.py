"""How much a certificate may cost, and what it finds."""

from typing import NamedTuple, TypeAlias

import equinox as eqx
import jax
from jaxtyping import Array, Float

from ..algorithm import Algorithm
from ..policies import AbstractPolicy
from ..statespace import StateSpace
from .inverses import Metric

Vector: TypeAlias = Float[Array, " p"]
Numbers: TypeAlias = dict[str, Float[Array, ""]]

_MINUTES = 4e11
"""Operations of a policy whose products take some five minutes of a core, in float64: measured
0.7 ns each with 251,168 parameters and 3,840 actions."""
_ENOUGH = 200
"""Products that are worth more than a larger reference."""
_ITERATIONS = 24
"""With a preconditioner from single visits: for more, vectors would cost as much as products."""
_ROWS = 2**26
"""Numbers in the rows of states, 0.5 GB: there are a few such matrices."""


class Effort(NamedTuple):
    """How much a certificate may cost, where there is no closed form."""

    rank: int = 128
    """Products of the reference that make the preconditioner: its rank, and the largest effective
    rank that can be found. Zero for a preconditioner from the states below, without products."""
    states: int = 128
    """States whose rows are looked at one by one: for a limit on the relative error, and where the
    reference is sampled, to begin the search."""
    iterations: int = 64
    """Of eigenvalue iterations and of linear solves, at most."""
    complete: bool = True
    """Whether to solve for directions and for the coupling of layers, too. Twenty updates buy that
    only where batches are large beside the environment, as 128 trajectories on a grid of side 4."""
    reference: int = 16
    """Trajectories of the reference, in batches of the run, where the environment is not
    enumerated."""
    sides: int = 2
    """Ends of the spectrum that are searched: both, or 1 for the largest eigenvalue only."""

    @classmethod
    def of_twenty_updates(cls, algorithm: Algorithm) -> "Effort":
        """What fits into the time of twenty updates of a network.

        An update is a latency and a pass over the batch at each step; a product of the
        exact Fisher is a pass over all states. The constants, in microseconds, were measured on
        grids with 240 to 65,025 states: only their ratios matter.

        A product of a sampled reference is a pass over as many batches as that has, so
        only the least is done: eight products. As updates evaluate padding and products do
        not, that takes 15 updates where trajectories are short, and the more the longer they
        are: 30 to 60 where they have 20 steps of 153.
        """
        space = algorithm.env
        if not isinstance(space, StateSpace):
            return cls(0, 64, 2, complete=False, sides=1)
        update = space.max_steps * (5 + 0.4 * algorithm.batch)
        products = int(8 * update / (0.2 * space.num_inner))
        return cls(0, 24, min(max(products // 6, 2), 8), products >= 300, sides=1)

    @classmethod
    def of_minutes(
        cls,
        algorithm: Algorithm,
        policy: AbstractPolicy,
        *,
        complete: bool = True,
        share: float = 1.0,
    ) -> "Effort":
        """What fits into a share of some minutes of two cores.

        On an enumerated environment that is all of it. Where the reference is sampled, a product
        is a pass over its visits. If these are too many for all that is promised to converge,
        the reference gets smaller, the preconditioner comes from single visits, and there
        are fewer iterations; what they give is then a lower bound, and says so.
        """
        most = cls(complete=complete)
        if isinstance(algorithm.env, StateSpace):
            return most
        arrays = jax.tree.leaves(eqx.filter(policy, eqx.is_inexact_array))
        parameters = sum(x.size for x in arrays)
        cost = jax.jit(lambda: policy(algorithm.env.init())).lower().cost_analysis()
        visit = max((cost or {}).get("flops", 0), parameters)
        batches = share * _MINUTES / (visit * algorithm.env.max_steps * algorithm.batch)
        if most.passes(len(arrays)) <= batches:
            return most
        reference = min(max(int(batches / _ENOUGH), 2), most.reference)
        states = min(max(_ROWS // parameters, 8), 256)
        fewest, *more = (cls(0, states, k, complete, reference) for k in range(2, _ITERATIONS + 1))
        return [fewest, *(each for each in more if each.passes(len(arrays)) <= batches)][-1]

    def passes(self, arrays: int) -> int:
        """Passes over a batch at most, with so many arrays of parameters."""
        steps = self.sides * self.iterations
        # Of the search for rho, and of the solves for the gradient and the momentum.
        return self.reference * self.products(arrays) + 2 + 3 * steps

    def products(self, arrays: int) -> int:
        """Products of a sampled reference at most, with so many arrays of parameters."""
        count = self.rank + 2 * (2 + self.sides * self.iterations)
        if self.complete:
            less = self.less()
            count += 2 * self.iterations + 4  # two solves, two norms and two residuals
            count += 1 + arrays * ((less.rank if self.rank else 0) + 2 + 2 * less.iterations)
        return count

    def less(self) -> "Effort":
        """For layer blocks, a product of which costs as much as one of the Fisher for each."""
        rank, iterations = max(self.rank // 4, 2), max(self.iterations // 2, 1)
        return self._replace(rank=rank, iterations=iterations)

    def trajectories(self, algorithm: Algorithm) -> int:
        """How many a sampled reference has: an even number, for it has halves."""
        return 2 * -(-self.reference * algorithm.batch // 2)


class Look(NamedTuple):
    """What differs between tables, networks, and environments that are not enumerated."""

    numbers: Numbers
    reference: Metric | None
    """The reference Fisher, if it may be solved with."""
    surrogate: Metric
