"""Assignments of the variables of a factor graph, one variable a step, in a fixed order."""

from math import prod
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..graphical import (
    MOST_ENTRIES,
    Contexts,
    FactorGraph,
    JunctionTree,
    TooWide,
    assigned_factors,
    assignment_order,
    junction_tree,
    log_partition,
    possible_values,
    separators,
)
from .base import AbstractEnv, Action


class Assignment(NamedTuple):
    """A state of `Assignments`: the values so far."""

    values: Int[Array, " variables"]
    """Of each variable; -1 where it has none yet."""
    step: Int[Array, ""]
    """How many have one."""


class Assignments(AbstractEnv):
    r"""$R(x) = \prod_\alpha \psi_\alpha(x_\alpha)$ (`eq:appendix_factorized_reward`).

    The action is the value of the next variable. The order is that of an elimination, reversed:
    the construction is aligned with the factors, and a policy that sees the separator $S_t$ alone
    can be the target (`app:computational_regimes_detailed`). An object has one trajectory, so
    $P_B = 1$. A partial assignment that cannot be completed, because of zero factors, is not
    entered.

    Attributes:
        graph: the model.
        order: the variables, as they are assigned.
        max_entries: of the tables of the junction tree; where they would be larger, there is none.
        tree: the junction tree of the order, if it is small enough.
        log_factors: of the factors that an assignment completes, by context and value.
        possible: whether a value can be completed, by context of the tree, or without a tree by
            step.
        log_z: $\log Z$, if the width allows it.
    """

    graph: FactorGraph
    order: tuple[int, ...] = eqx.field(static=True)
    max_entries: int = eqx.field(static=True)
    tree: JunctionTree | None
    log_factors: Float[np.ndarray, "rows values"] | None
    possible: Bool[np.ndarray, "rows values"]
    log_z: float | None = eqx.field(static=True)

    def __init__(
        self,
        graph: FactorGraph,
        order: str | tuple[int, ...] = "auto",
        max_entries: int = MOST_ENTRIES,
    ):
        if graph.num_variables < 1:
            raise ValueError("a factor graph needs at least one variable to assign")
        self.graph, self.max_entries = graph, max_entries
        self.order = assignment_order(graph, order)
        try:
            self.tree = junction_tree(graph, self.order, max_entries)
        except TooWide as error:
            self.tree = self.log_factors = None
            self.possible = _without_look_ahead(graph, self.order, error)
            self.log_z = _log_z(graph, self.order)
            return
        self.log_factors = assigned_factors(graph, self.tree.contexts)
        self.possible, self.log_z = possible_values(self.tree, self.log_factors)

    @property
    def num_actions(self) -> int:
        return max(self.graph.cards)

    @property
    def max_steps(self) -> int:
        return len(self.order)

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(card + 1 for card in self.graph.cards)

    def coordinates(self, state: Assignment) -> Int[Array, " variables"]:
        """The values plus one, 0 where there is none."""
        return state.values.astype(jnp.int32) + 1

    def contexts(self, size: int | None = None) -> Contexts:
        """What a policy sees of a partial assignment.

        Args:
            size: the most variables: of the separator those that are nearest in the graph, the
                later ones first among equals; all of it by default.
        """
        seen = separators(self.graph, self.order)
        if size is None:
            self.require_tree("a policy that sees whole separators")
            return Contexts(self.order, self.graph.cards, seen)
        return Contexts(self.order, self.graph.cards, nearest(self.graph, self.order, seen, size))

    def require_tree(
        self, what: str
    ) -> tuple[JunctionTree, Float[Array | np.ndarray, "rows values"]]:
        """The junction tree and the factors on it; one line that says why there is none."""
        if self.tree is None or self.log_factors is None:
            try:
                junction_tree(self.graph, self.order, self.max_entries)
            except TooWide as error:
                raise ValueError(f"{what} needs a junction tree: {error}") from error
            raise AssertionError("a tree that fits is kept")
        return self.tree, self.log_factors

    def mask(self, contexts: Contexts) -> Bool[Array, "rows values"]:
        """The values that are possible in contexts: in some state there, if they see too little."""
        if self.tree is None:
            return jnp.asarray(self.possible)[contexts.steps]
        possible = jnp.asarray(self.possible)
        if contexts == self.tree.contexts:
            return possible
        found = jnp.zeros((contexts.num_rows, self.num_actions), bool)
        return found.at[contexts.within(self.tree.contexts)].max(possible)

    def init(self) -> Assignment:
        kind = jnp.int8 if self.num_actions < 2**7 else jnp.int32
        return Assignment(jnp.full(self.max_steps, -1, kind), jnp.array(0, jnp.int32))

    def step(self, state: Assignment, action: Action) -> Assignment:
        variable = jnp.asarray(self.order)[jnp.minimum(state.step, self.max_steps - 1)]
        value = jnp.asarray(action).astype(state.values.dtype)
        return Assignment(state.values.at[variable].set(value), state.step + 1)

    def undo(self, state: Assignment, action: Action) -> Assignment:
        variable = jnp.asarray(self.order)[jnp.maximum(state.step - 1, 0)]
        return Assignment(state.values.at[variable].set(-1), state.step - 1)

    def forward_mask(self, state: Assignment) -> Bool[Array, " actions"]:
        tree = self.tree
        row = state.step if tree is None else tree.contexts.row(state.values, state.step)
        return jnp.asarray(self.possible).at[row].get(mode="fill", fill_value=False)

    def backward_mask(self, state: Assignment) -> Bool[Array, " actions"]:
        last = state.values[jnp.asarray(self.order)[jnp.maximum(state.step - 1, 0)]]
        return (jnp.arange(self.num_actions) == last) & (state.step > 0)

    def is_terminal(self, state: Assignment) -> Bool[Array, ""]:
        return state.step == self.max_steps

    def observe(self, state: Assignment) -> Float[Array, " features"]:
        """One-hot values, "none yet" the first of each variable."""
        hot = self.coordinates(state)[:, None] == jnp.arange(self.num_actions + 1)
        return hot.astype(float).ravel()

    def log_reward(self, state: Assignment) -> Float[Array, ""]:
        return self.log_partial(state)

    def log_partial(self, state: Assignment) -> Float[Array, ""]:
        """Of the factors whose variables all have a value."""
        variables, strides, starts = self._look_ups()
        values = state.values.astype(jnp.int32)[variables]
        known = jnp.all((values >= 0) | (strides == 0), axis=1)
        entries = starts + jnp.sum(strides * values, axis=1)
        return jnp.sum(jnp.where(known, jnp.asarray(self.graph.log_table)[entries], 0.0))

    def distance(self, one: Assignment, other: Assignment) -> Float[Array, ""]:
        """How many variables differ."""
        return jnp.sum(one.values != other.values).astype(float)

    def _look_ups(
        self,
    ) -> tuple[
        Int[np.ndarray, "factors arity"],
        Int[np.ndarray, "factors arity"],
        Int[np.ndarray, " factors"],
    ]:
        """Of each factor its variables, what a unit of each adds to the number of its entry in the
        table of all, and the first of its entries; variable 0 and nothing where it has fewer."""
        scopes = self.graph.scopes
        widest = max(1, max(map(len, scopes), default=1))
        variables, strides = np.zeros((2, len(scopes), widest), np.int32)
        sizes = [prod(self.graph.shape(scope)) for scope in scopes]
        for number, scope in enumerate(scopes):
            shape = self.graph.shape(scope)
            variables[number, : len(scope)] = scope
            strides[number, : len(scope)] = [prod(shape[i + 1 :]) for i in range(len(scope))]
        starts = np.cumsum([0, *sizes])[:-1].astype(np.int32)
        return variables, strides, starts


def nearest(
    graph: FactorGraph,
    order: tuple[int, ...],
    seen: tuple[tuple[int, ...], ...],
    size: int,
) -> tuple[tuple[int, ...], ...]:
    """At most `size` of the variables that each step sees."""
    if size < 0:
        raise ValueError(f"size must not be negative, got {size}")
    place = {variable: step for step, variable in enumerate(order)}
    around = graph.neighbours()
    kept = []
    for variable, others in zip(order, seen, strict=True):
        distance, ring = {variable: 0}, [variable]
        while ring and not set(others) <= distance.keys():
            ring = list(dict.fromkeys(b for a in ring for b in around[a] if b not in distance))
            distance |= dict.fromkeys(ring, max(distance.values()) + 1)
        near = sorted(others, key=lambda v: (distance.get(v, len(order)), -place[v]))[:size]
        kept.append(tuple(sorted(near, key=place.__getitem__)))
    return tuple(kept)


def _without_look_ahead(
    graph: FactorGraph, order: tuple[int, ...], error: TooWide
) -> Bool[np.ndarray, "steps values"]:
    """The values that each variable may take, where only factors of one variable forbid any."""
    own = np.arange(max(graph.cards)) < np.array(graph.cards)[:, None]
    for scope, log_factor in graph.factors():
        if len(scope) == 1:
            own[scope[0], : log_factor.size] &= log_factor > -np.inf
        elif np.any(log_factor == -np.inf):
            raise ValueError(
                f"factor {scope} is zero somewhere, and which partial assignments can be completed "
                f"is known only from a junction tree: {error}"
            ) from error
    if not np.all(np.any(own, axis=1)):
        raise ValueError("a variable has no possible value")
    return own[list(order)]


def _log_z(graph: FactorGraph, order: tuple[int, ...]) -> float | None:
    try:
        return log_partition(graph, order)
    except TooWide:
        return None
