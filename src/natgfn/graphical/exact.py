r"""Exact inference on the junction tree: the law of the target as an aligned policy.

Summing out $v_t$ from the last to the first leaves, in every context, the total weight
$m(c) = \sum_a e^{u(c, a)}$ of what can follow, with $u$ the factors assigned at $t$ and the
messages of the children. So $\pi^\star(a \mid c) = e^{u(c, a)} / m(c)$ is $p(x_t \mid x_{S_t})$:
sampled from the root, it draws from the target, and its occupancy has the marginals.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .contexts import Contexts
from .graph import FactorGraph
from .order import assignment_order, separators, width
from .tree import JunctionTree, TooWide, junction_tree

MOST_ENTRIES = 2**23
"""Of all tables of a junction tree that is kept, by default: some 300 MB with its pairs."""

LARGEST_TABLE = 2**26
"""Entries of one table that is summed out and forgotten: half a gigabyte."""


def assigned_factors(graph: FactorGraph, contexts: Contexts) -> Float[np.ndarray, "rows values"]:
    r"""$\sum_\alpha \log \psi_\alpha$ over the factors that $v_t$ completes, by context and value.

    Minus infinity for values that a variable does not have. A factor of no variables counts at the
    first step.
    """
    place = {variable: step for step, variable in enumerate(contexts.order)}
    table = np.full((contexts.num_rows, contexts.num_values), -np.inf)
    seen = contexts.values(np.arange(contexts.num_rows))
    for step, variable in enumerate(contexts.order):
        table[contexts.starts[step] : contexts.starts[step + 1], : contexts.cards[variable]] = 0.0
    for scope, log_factor in graph.factors():
        if not scope:
            table[: contexts.starts[1]] += log_factor
            continue
        step = max(place[variable] for variable in scope)
        here, variable = (
            slice(contexts.starts[step], contexts.starts[step + 1]),
            contexts.order[step],
        )
        known = dict(zip(contexts.seen[step], seen[here].T, strict=False))
        own = np.arange(graph.cards[variable])
        index = tuple(own[None] if v == variable else known[v][:, None] for v in scope)
        table[here, : len(own)] += log_factor[index]
    return table


def sum_over_values(_: Int[Array, " n"], table: Float[Array, "n values"]) -> Float[Array, " n"]:
    """The message of sum-product; minus infinity where nothing is possible."""
    top = jnp.max(table, axis=1, keepdims=True)
    shifted = jnp.exp(table - jnp.where(top > -jnp.inf, top, 0.0))
    return jnp.log(jnp.sum(shifted, axis=1)) + top[:, 0]


def best_of_values(_: Int[Array, " n"], table: Float[Array, "n values"]) -> Float[Array, " n"]:
    """The message of max-product."""
    return jnp.max(table, axis=1)


class Exact(NamedTuple):
    """What is known exactly of a factor graph; probabilities in float64."""

    graph: FactorGraph
    tree: JunctionTree
    log_z: float
    r"""$\log \sum_x R(x)$."""
    probs: Float[np.ndarray, "rows values"]
    r"""$p(x_t \mid x_{S_t})$ by context; zero in contexts that are impossible."""
    occupancy: Float[np.ndarray, " rows"]
    r"""$p(x_{S_t})$."""
    best: Int[np.ndarray, " variables"]
    """A most probable assignment."""
    best_log_value: float
    r"""Its $\log R(x)$."""

    @property
    def marginals(self) -> list[Float[np.ndarray, " values"]]:
        """$p(x_v)$ of each variable."""
        order = self.tree.contexts.order
        steps = {variable: step for step, variable in enumerate(order)}
        return [self.clique(steps[v]).reshape(-1, k).sum(0) for v, k in enumerate(self.graph.cards)]

    def clique(self, step: int) -> Float[np.ndarray, "..."]:
        """$p(x_{S_t}, x_t)$, an axis for each variable of $S_t$ and the last for $v_t$."""
        contexts = self.tree.contexts
        here = slice(contexts.starts[step], contexts.starts[step + 1])
        shape = self.graph.shape((*contexts.seen[step], contexts.order[step]))
        joint = self.occupancy[here, None] * self.probs[here, : shape[-1]]
        return joint.reshape(shape)

    def sample(self, num: int, *, key: PRNGKeyArray) -> Int[np.ndarray, "num variables"]:
        """Assignments drawn from the target."""
        with jax.enable_x64(True):
            return np.asarray(_draw(self.tree, jnp.asarray(self.probs), num, key))


def infer(
    graph: FactorGraph,
    order: str | Sequence[int] = "auto",
    evidence: Mapping[int, int] | None = None,
    most: int = MOST_ENTRIES,
) -> Exact:
    """Exact inference.

    Args:
        graph: the model.
        order: of assignment, as `assignment_order` takes it.
        evidence: observed values by variable.
        most: entries of all tables, at most.

    Raises:
        TooWide: the tables would be larger; nothing has been allocated.
        ValueError: no assignment has a positive weight.
    """
    graph = graph.given(evidence or {})
    tree = junction_tree(graph, assignment_order(graph, order), most)
    factors = assigned_factors(graph, tree.contexts)
    with jax.enable_x64(True):
        log_z, probs, occupancy, best, top = map(np.asarray, _solve(tree, jnp.asarray(factors)))
    if log_z == -np.inf:
        raise ValueError(_IMPOSSIBLE)
    return Exact(graph, tree, float(log_z), probs, occupancy, best, float(top))


@eqx.filter_jit
def _solve(tree: JunctionTree, factors: Float[Array, "rows values"]):
    weights, totals = tree.up(factors, sum_over_values)
    probs = jnp.exp(weights - jnp.where(totals > -jnp.inf, totals, 0.0)[:, None])
    scores, tops = tree.up(factors, best_of_values)
    best = _descend(tree, lambda _, row: jnp.argmax(scores[row]))
    roots = tree.roots
    return jnp.sum(totals[roots]), probs, tree.down(probs), best, jnp.sum(tops[roots])


@eqx.filter_jit
def _draw(tree: JunctionTree, probs: Float[Array, "rows values"], num: int, key: PRNGKeyArray):
    cdf = jnp.cumsum(probs, axis=1)

    def one(key):
        uniform = jax.random.uniform(key, (tree.contexts.num_steps,), cdf.dtype)

        def choose(step, row):
            return jnp.sum(uniform[step] * cdf[row, -1] >= cdf[row])

        return _descend(tree, choose)

    return jax.vmap(one)(jax.random.split(key, num))


def _descend(tree: JunctionTree, choose) -> Int[Array, " variables"]:
    """An assignment, variable by variable, each chosen in its context."""
    contexts, order = tree.contexts, jnp.asarray(tree.contexts.order)

    def assign(step, values):
        chosen = choose(step, contexts.row(values, step))
        return values.at[order[step]].set(chosen.astype(values.dtype))

    start = jnp.zeros(contexts.num_steps, jnp.int32)
    return jax.lax.fori_loop(0, contexts.num_steps, assign, start)


def log_partition(
    graph: FactorGraph, order: str | Sequence[int] = "auto", largest: int = LARGEST_TABLE
) -> float:
    r"""$\log Z$ alone, one variable summed out after the other: only messages are kept.

    For widths at which the tables of a junction tree would not fit.

    Raises:
        TooWide: a table would have more than `largest` entries; nothing has been allocated.
    """
    from scipy.special import logsumexp  # takes long to import

    order = assignment_order(graph, order)
    seen = separators(graph, order)
    sizes = [prod(graph.shape((v, *s))) for v, s in zip(order, seen, strict=True)]
    if max(sizes, default=0) > largest:
        raise TooWide(width(seen), max(sizes), largest)
    total, left = 0.0, list(graph.factors())
    for variable, others in zip(reversed(order), reversed(seen), strict=True):
        scope = (*others, variable)
        joined = np.zeros(graph.shape(scope))
        for part, log_factor in (factor for factor in left if variable in factor[0]):
            axes = sorted(range(len(part)), key=lambda axis: scope.index(part[axis]))
            shape = [graph.cards[v] if v in part else 1 for v in scope]
            joined += log_factor.transpose(axes).reshape(shape)
        left = [factor for factor in left if variable not in factor[0]]
        left.append((others, np.asarray(logsumexp(joined, axis=-1))))
        total += sum(float(value) for rest, value in left if not rest)
        left = [factor for factor in left if factor[0]]
    return total


def possible_values(
    tree: JunctionTree, factors: Float[np.ndarray, "rows values"]
) -> tuple[Bool[np.ndarray, "rows values"], float]:
    r"""Whether each value can be completed to an assignment of positive weight, and $\log Z$.

    Raises:
        ValueError: there is no such assignment.
    """
    with jax.enable_x64(True):
        weights, totals = map(np.asarray, _up(tree, jnp.asarray(factors)))
    log_z = float(np.sum(totals[tree.roots]))
    if log_z == -np.inf:
        raise ValueError(_IMPOSSIBLE)
    return weights > -np.inf, log_z


@eqx.filter_jit
def _up(tree: JunctionTree, factors: Float[Array, "rows values"]):
    return tree.up(factors, sum_over_values)


_IMPOSSIBLE = "no assignment of the variables is possible: every product has a zero factor"
