"""How trajectories ask a policy for its actions: never twice in the same state."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..envs import AbstractEnv, State
from ..policies import LARGE, AbstractPolicy, Visits
from ..statespace import StateSpace

FEW = 512
"""States that are evaluated beforehand: fewer take less time than looking for new ones."""


Law: TypeAlias = Callable[[State, Array], Array]
"""From states along a leading axis and their logits to the cumulative probabilities of actions."""


class AbstractAsking(eqx.Module):
    """Laws of the next action, step by step, and what is carried from step to step."""

    policy: eqx.AbstractVar[AbstractPolicy]
    law: eqx.AbstractVar[Law]

    @abstractmethod
    def start(self) -> Any:
        """What is carried into the first step."""

    @abstractmethod
    def cumulative(
        self, states: State, live: Bool[Array, " n"], asked: Any
    ) -> tuple[Float[Array, "n actions"], Any]:
        """The law of states along a leading axis, any where not `live`; and what is carried."""

    @abstractmethod
    def visits(self, asked: Any, states: State, live: Bool[Array, "times n"]) -> Visits | None:
        """The rows that were evaluated, for the states `[times, n]` of all steps."""


def asking(
    env: AbstractEnv, policy: AbstractPolicy, law: Law, num: int, *, backwards: bool = False
) -> AbstractAsking:
    """The way that suits a policy, for `num` trajectories from the source, or back to it."""
    if not policy.by_visits:
        return Plain(policy, law)
    rows = num * env.max_steps
    if isinstance(env, StateSpace):
        numbers = env.num_states if backwards else env.num_inner
        if numbers <= FEW:
            return Everywhere(policy, law, numbers)
        rows = min(rows, numbers)
    return Once(policy, law, env, num, rows)


class Plain(AbstractAsking):
    """Every state in every step."""

    policy: AbstractPolicy
    law: Law

    def start(self) -> None:
        return None

    def cumulative(
        self, states: State, live: Bool[Array, " n"], asked: None
    ) -> tuple[Float[Array, "n actions"], None]:
        return self.law(states, self.policy.many(states, live)), None

    def visits(self, asked: None, states: State, live: Bool[Array, "times n"]) -> None:
        return None


class Everywhere(AbstractAsking):
    """All states of an enumerated environment beforehand; a step is then a look-up."""

    policy: AbstractPolicy
    law: Law
    num_states: int

    def start(self) -> Float[Array, "states actions"]:
        every = jnp.arange(self.num_states)
        return self.law(every, self.policy.many(every))

    def cumulative(
        self, states: State, live: Bool[Array, " n"], asked: Float[Array, "states actions"]
    ) -> tuple[Float[Array, "n actions"], Float[Array, "states actions"]]:
        return asked.at[states].get(mode="clip"), asked

    def visits(
        self, asked: Float[Array, "states actions"], states: State, live: Bool[Array, "times n"]
    ) -> Visits:
        place = jnp.minimum(states.ravel(), self.num_states - 1)
        return Visits(jnp.arange(self.num_states), self.num_states, place)


class Asked(NamedTuple):
    """Rows that have been evaluated, and the row of each state that has a number."""

    num: Int[Array, ""]
    states: State
    logits: Float[Array, "rows actions"]
    row: Int[Array, " states"] | None


class Once(AbstractAsking):
    """The states of each step that are live, and not yet known where states have numbers.

    Attributes:
        policy: what is asked.
        law: of the next action.
        env: the environment.
        num: trajectories.
        rows: the most that can be evaluated.
    """

    policy: AbstractPolicy
    law: Law
    env: AbstractEnv
    num: int
    rows: int

    def start(self) -> Asked:
        # Every step writes `num` rows, of which those beyond the new ones are written again.
        rows = self.rows + max(self.num, LARGE)
        init = self.env.init()
        logits = jax.eval_shape(self.policy, init)
        return Asked(
            jnp.array(0),
            jax.tree.map(lambda x: jnp.zeros((rows, *x.shape), x.dtype), init),
            jnp.zeros((rows, *logits.shape), logits.dtype),
            jnp.full(self.env.num_states, -1) if isinstance(self.env, StateSpace) else None,
        )

    def cumulative(
        self, states: State, live: Bool[Array, " n"], asked: Asked
    ) -> tuple[Float[Array, "n actions"], Asked]:
        new, row, mine = live, asked.row, jnp.arange(self.num)
        if row is not None:
            new = live & (row[states] < 0)
            # Of equal new states one stands for all: the one whose claim is left.
            row = row.at[_where_new(row, new, states)].set(-2 - mine, mode="drop")
            new = new & (row[states] == -2 - mine)
        rank = jnp.cumsum(new) - 1
        order = jnp.zeros(self.num, int).at[jnp.where(new, rank, self.num)].set(mine, mode="drop")
        picked = jax.tree.map(lambda x: x[order], states)
        found = self._first(picked, rank[-1] + 1)
        place = asked.num + rank
        if row is not None:
            row = row.at[_where_new(row, new, states)].set(place, mode="drop")
            place = row[states]
        logits = _write(asked.logits, found, asked.num)
        after = Asked(
            asked.num + rank[-1] + 1,
            jax.tree.map(lambda x, y: _write(x, y, asked.num), asked.states, picked),
            logits,
            row,
        )
        return self.law(states, logits[place]), after

    def _first(self, states: State, count: Int[Array, ""]) -> Float[Array, "n actions"]:
        """The logits of the first `count` states, from the smallest of some programs."""
        sizes = [self.num // part for part in (16, 4) if self.num // part >= 8] + [self.num]

        def on(size):
            found = self.policy.many(jax.tree.map(lambda x: x[:size], states))
            return jnp.pad(found, ((0, self.num - size), (0, 0)))

        branches = [partial(on, size) for size in sizes]
        return jax.lax.switch(jnp.searchsorted(jnp.array(sizes), count), branches)

    def visits(self, asked: Asked, states: State, live: Bool[Array, "times n"]) -> Visits:
        # Without numbers, rows are the live visits in their order.
        row = jnp.cumsum(live.ravel()) - 1 if asked.row is None else asked.row[states].ravel()
        place = jnp.where(live.ravel(), row, 0)
        return Visits(asked.states, asked.num, place, asked.logits)


def _where_new(row: Int[Array, " states"], new: Bool[Array, " n"], states: State) -> Array:
    """The numbers of new states; beyond the last one for others."""
    return jnp.where(new, states, row.size)


def _write(rows: Array, some: Array, start: Int[Array, ""]) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(rows, some.astype(rows.dtype), start, axis=0)
