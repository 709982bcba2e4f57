r"""Loopy belief propagation: sum-product messages on a factor graph that may have cycles.

Factor $\alpha$ tells variable $v$, and variable $v$ tells factor $\alpha$,
$$\mu_{\alpha v}(x_v) \propto \sum_{x_\alpha \setminus x_v} \psi_\alpha(x_\alpha)
\prod_{u \in \alpha \setminus v} \nu_{u \alpha}(x_u), \qquad
\nu_{v \alpha}(x_v) = \prod_{\beta \ni v,\ \beta \ne \alpha} \mu_{\beta v}(x_v),$$
all at once in every iteration. The beliefs are $b_v \propto \prod_\alpha \mu_{\alpha v}$ and
$b_\alpha \propto \psi_\alpha \prod_v \nu_{v \alpha}$, with normalisers $Z_v$ and $Z_\alpha$, and
Bethe's approximation is
$$\log Z \approx \sum_\alpha \log Z_\alpha + \sum_v (1 - |\{\alpha \ni v\}|) \log Z_v.$$
On a tree all of them are exact; with cycles they are approximate summaries, in the sense of
`app:computational_regimes_detailed`, if the messages converge.

Messages $\mu$ are logarithms whose largest value is zero, and they are damped as such,
$\mu_\text{old}^\gamma\, \mu_\text{new}^{1 - \gamma}$: what a factor rules out is ruled out at once,
where a mixture of probabilities would get to zero in the limit only, and see no contradiction. A
value that one factor rules out at a variable is ruled out in all messages there, which changes no
belief and spares dividing zero by zero.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..errors import NatgfnError
from .graph import FactorGraph, Scope


class Wiring(eqx.Module):
    """Which numbers meet in belief propagation, for given cardinalities and scopes.

    A factor is a matrix: its rows are the assignments of the first part of its scope, its columns
    those of the rest. A *line* is a row or a column of a factor. A *message* belongs to an edge
    between a factor and a variable, and to a value. Lines, messages and sums over messages are
    flat arrays. Sums of similar sizes are gathered by one block of indices, padded to the largest;
    padding refers to a number behind the end of the array.

    Attributes:
        entries: the entries of the factors, as matrices.
        slots: the messages that meet in each line, one a variable.
        lines: the lines in which each message takes part.
        meetings: the messages that meet in each value of a variable.
        levels: the sum over `meetings` of which each message is a term.
        singles: the same, for each variable and value.
        places: of the entries of the factors, among `entries`.
        excess: one minus the number of factors, for each variable.
    """

    entries: tuple[Int[np.ndarray, "_columns _rows _factors"], ...]
    slots: Int[np.ndarray, "_arity _lines"]
    lines: tuple[Int[np.ndarray, "_terms _values _edges"], ...]
    meetings: tuple[Int[np.ndarray, "_terms _values _variables"], ...]
    levels: Int[np.ndarray, " messages"]
    singles: Int[np.ndarray, "variables _values"]
    places: Int[np.ndarray, " _entries"]
    excess: Int[np.ndarray, " variables"]

    @classmethod
    def of(cls, cards: Sequence[int], scopes: Sequence[Scope]) -> "Wiring":
        """From the number of values of each variable, and the variables of each factor."""
        shapes = [tuple(cards[v] for v in scope) for scope in scopes]
        cuts = [_cut(shape) for shape in shapes]
        starts = np.cumsum([0, *map(prod, shapes)])
        total = int(starts[-1])
        matrices = [
            start + np.arange(prod(shape)).reshape(prod(shape[:cut]), -1)
            for start, shape, cut in zip(starts[:-1], shapes, cuts, strict=True)
        ]
        entries, rows, num_rows = _blocks(matrices, total, total)
        _, columns, num_columns = _blocks([matrix.T for matrix in matrices], total, total)
        order = np.concatenate([*(block.ravel() for block in entries), np.zeros(0, int)])
        places = np.zeros(total, int)
        places[order[order < total]] = np.flatnonzero(order < total)

        edges = []
        for scope, shape, cut, row, column in zip(scopes, shapes, cuts, rows, columns, strict=True):
            parts = (scope[:cut], shape[:cut], row), (scope[cut:], shape[cut:], num_rows + column)
            for variables, sizes, numbers in parts:
                for slot, v in enumerate(variables):
                    by_value = np.moveaxis(numbers.reshape(sizes), slot, 0)
                    edges.append((v, slot, by_value.reshape(cards[v], -1)))
        num_lines = num_rows + num_columns
        lines, sent, num_messages = _blocks([some for *_, some in edges], num_lines, num_lines)
        slots = np.full((max([1, *(slot + 1 for _, slot, _ in edges)]), num_lines), num_messages)
        heard = [[] for _ in cards]
        for (v, slot, some), messages in zip(edges, sent, strict=True):
            slots[slot, some] = messages[:, None]
            heard[v].append(messages)

        # Behind the end are the message that says nothing, and the one that rules out everything.
        silence = [np.full(card, num_messages) for card in cards]
        terms = [np.stack(some or [none], 1) for some, none in zip(heard, silence, strict=True)]
        meetings, sums, num_sums = _blocks(terms, num_messages, num_messages + 1)
        levels = np.full(num_messages, num_sums)
        singles = np.full((len(cards), max([1, *cards])), num_sums)
        for v, values in enumerate(sums):
            singles[v, : cards[v]] = values
            for messages in heard[v]:
                levels[messages] = values
        excess = np.array([1 - len(some) for some in heard])
        flat = (x.astype(np.int32) for x in (slots, levels, singles, places, excess))
        slots, *rest = flat
        return cls(entries, slots, lines, meetings, *rest)

    @property
    def num_messages(self) -> int:
        return self.levels.shape[0]


def _cut(shape: tuple[int, ...]) -> int:
    """Where to part the scope of a factor so that its matrix has the fewest lines."""
    return min(range(len(shape) + 1), key=lambda cut: prod(shape[:cut]) + prod(shape[cut:]))


def _blocks(
    sums: list[Int[np.ndarray, "_values _terms"]], no_term: int, no_value: int
) -> tuple[tuple[Int[np.ndarray, "_terms _values _sums"], ...], list[np.ndarray], int]:
    """Sums of similar sizes as blocks, the places of each in the flat results, and their number."""
    blocks, places, start = [], [np.zeros(0, int)] * len(sums), 0
    for group in _similar([some.shape for some in sums]):
        values, terms = np.max([sums[number].shape for number in group], axis=0)
        block = np.full((terms, values, len(group)), no_value, np.int32)
        for column, number in enumerate(group):
            some = sums[number]
            block[:, : len(some), column] = no_term
            block[: some.shape[1], : len(some), column] = some.T
            places[number] = start + column + len(group) * np.arange(len(some))
        blocks.append(block)
        start += block[0].size
    return tuple(blocks), places, start


SPARE = 512
"""Numbers of padding that cost less than a block of their own, in time and in compilation."""


def _similar(shapes: list[tuple[int, ...]]) -> list[list[int]]:
    """Groups of shapes that round up to the same powers of two, or are too few to be apart."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, shape in enumerate(shapes):
        groups.setdefault(tuple((n - 1).bit_length() for n in shape), []).append(number)

    def padded(group):
        return len(group) * int(np.prod(np.max([shapes[number] for number in group], axis=0)))

    joined: list[list[int]] = []
    for group in groups.values():
        for other in joined:
            if padded(other + group) <= padded(other) + padded(group) + SPARE:
                other.extend(group)
                break
        else:
            joined.append(group)
    return joined


class Beliefs(NamedTuple):
    r"""What belief propagation says about a factor graph, and whether it had converged.

    If a variable or a factor has no possible value left, no assignment has a positive weight:
    then $\log Z$ is minus infinity, the residual infinite, and nothing has converged.
    """

    log_singles: Float[Array | np.ndarray, "variables values"]
    r"""$\log b_v$; minus infinity for values that a variable does not have."""
    log_factors: Float[Array | np.ndarray, " entries"]
    r"""$\log b_\alpha$, in the layout of `FactorGraph.log_table`."""
    log_z: Float[Array | np.ndarray, ""]
    """Bethe's approximation."""
    residual: Float[Array | np.ndarray, ""]
    """The largest change of a message in the last iteration, before damping, in probability."""
    iterations: Int[Array | np.ndarray, ""]
    converged: Bool[Array | np.ndarray, ""]
    """Whether the residual is at most the tolerance."""
    messages: Float[Array | np.ndarray, " messages"]
    """To start from when the factors have changed a little."""


def propagate(
    wiring: Wiring,
    log_table: Float[Array, " entries"],
    *,
    damping: float | Float[Array, ""] = 0.25,
    tolerance: float | Float[Array, ""] = 1e-5,
    max_iterations: int | Int[Array, ""] = 200,
    start: Float[Array, " messages"] | None = None,
) -> Beliefs:
    r"""Messages until they change no more, for any factors of these scopes, inside `jit`.

    Arguments:
        wiring: of the factor graph.
        log_table: $\log \psi_\alpha$, in the layout of `FactorGraph.log_table`.
        damping: $\gamma$, from 0 to below 1.
        tolerance: of the residual, at which to stop.
        max_iterations: at most so many.
        start: messages of earlier beliefs; uniform without. What they rule out is forgotten, since
            only the present factors may.
    """
    if log_table.shape != wiring.places.shape:
        wanted, given = wiring.places.size, log_table.size
        raise ValueError(f"the factors need {wanted} entries, got {given}")
    if start is not None and start.shape != wiring.levels.shape:
        wanted, given = wiring.num_messages, start.size
        raise ValueError(f"start needs {wanted} messages, as beliefs of this wiring, got {given}")
    dtype = log_table.dtype
    damping = jnp.asarray(damping, dtype)
    zero, never = jnp.zeros(1, dtype), jnp.full(1, -jnp.inf, dtype)
    tables = [jnp.append(log_table, never)[block] for block in wiring.entries]
    sizes = [table.shape for table in tables]
    line_shapes = [(rows, n) for _, rows, n in sizes] + [(columns, n) for columns, _, n in sizes]
    message_shapes = [block.shape[1:] for block in wiring.lines]

    def meet(messages):
        """Products of messages: at variables, to factors, and with the factors themselves."""
        padded = jnp.concatenate([messages, zero, never])
        sums = _join([jnp.sum(padded[block], axis=0) for block in wiring.meetings], never)
        answers = _less(sums[wiring.levels], messages)
        lines = jnp.sum(jnp.append(answers, zero)[wiring.slots], axis=0)
        parts = _split(lines, line_shapes)
        rows, columns = parts[: len(tables)], parts[len(tables) :]
        scores = [
            table + row + column[:, None]
            for table, row, column in zip(tables, rows, columns, strict=True)
        ]
        return sums, answers, scores

    def iterate(carry):
        messages, _, iterations = carry
        _, answers, scores = meet(messages)
        totals = _join([_log_sum(some, axis) for axis in (0, 1) for some in scores], never)
        damped, changes = [], []
        pieces = _split(answers, message_shapes), _split(messages, message_shapes)
        for block, answer, old in zip(wiring.lines, *pieces, strict=True):
            told = _log_sum(totals[block], 0) - answer
            new = _relative(jnp.where(answer == -jnp.inf, -jnp.inf, told))
            changes.append(jnp.abs(_law(new) - _law(old)))
            damped.append(_relative(_less(new, damping * (new - old))))
        residual = jnp.max(_join(changes, zero))
        return _join(damped, zero[:0]), residual, iterations + 1

    def unfinished(carry):
        _, residual, iterations = carry
        return (residual > tolerance) & (iterations < max_iterations)

    num_sums = sum(block[0].size for block in wiring.meetings)
    lowest = jnp.asarray(np.log(jnp.finfo(dtype).tiny), dtype)
    start = jnp.zeros(wiring.num_messages) if start is None else start
    # Not a number is below nothing, so that messages which went wrong are forgotten, too.
    first = jnp.where(start > lowest, start, lowest).astype(dtype)
    first = jnp.where(wiring.levels < num_sums, first, -jnp.inf)
    carry = first, jnp.array(jnp.inf, dtype), jnp.array(0)
    messages, residual, iterations = jax.lax.while_loop(unfinished, iterate, carry)

    sums, _, scores = meet(messages)
    factor_z = [_log_sum(_log_sum(some, 0), 0) for some in scores]
    log_factors = [_less(some, z) for some, z in zip(scores, factor_z, strict=True)]
    singles = sums[wiring.singles]
    single_z = _log_sum(singles, 1)
    all_z = jnp.append(_join(factor_z, zero), single_z)
    possible = ~jnp.any(all_z == -jnp.inf)
    counts = jnp.append(jnp.ones(all_z.size - single_z.size, dtype), wiring.excess)
    residual = jnp.where(possible, residual, jnp.inf)
    return Beliefs(
        log_singles=_less(singles, single_z[:, None]),
        log_factors=_join(log_factors, zero[:0])[wiring.places],
        log_z=jnp.where(possible, jnp.sum(counts * all_z), -jnp.inf),
        residual=residual,
        iterations=iterations,
        converged=residual <= tolerance,
        messages=messages,
    )


def loopy(
    graph: FactorGraph,
    *,
    damping: float = 0.25,
    tolerance: float = 1e-9,
    max_iterations: int = 1000,
    start: Float[np.ndarray, " messages"] | None = None,
) -> Beliefs:
    """Belief propagation on a factor graph, in float64; ask `check_converged` about the result."""
    if not 0 <= damping < 1:
        raise ValueError(f"damping must be in [0, 1), got {damping}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be at least 0, got {tolerance}")
    if max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
    with jax.enable_x64(True):
        beliefs = _propagate(
            Wiring.of(graph.cards, graph.scopes),
            jnp.asarray(graph.log_table),
            damping=damping,
            tolerance=tolerance,
            max_iterations=max_iterations,
            start=None if start is None else jnp.asarray(start),
        )
        return jax.tree.map(np.asarray, beliefs)


_propagate = jax.jit(propagate)


def check_converged(beliefs: Beliefs) -> None:
    """Raise an error of one line unless belief propagation has converged."""
    if beliefs.log_z == -jnp.inf:
        raise NatgfnError(
            "belief propagation found a contradiction: no assignment has a positive weight; "
            "check the zero factors and the evidence"
        )
    if not beliefs.converged:
        raise NatgfnError(
            f"belief propagation has not converged: residual {float(beliefs.residual):.2g} after "
            f"{int(beliefs.iterations)} iterations; allow more of them, or more damping"
        )


def _join(arrays: Sequence[Float[Array, "..."]], end: Float[Array, " _"]) -> Float[Array, " _"]:
    return jnp.concatenate([*(array.ravel() for array in arrays), end])


def _split(
    flat: Float[Array, " _"], shapes: Sequence[tuple[int, ...]]
) -> list[Float[Array, "..."]]:
    ends = accumulate(map(prod, shapes))
    return [flat[end - prod(s) : end].reshape(s) for end, s in zip(ends, shapes, strict=True)]


def _less(a: Float[Array, "..."], b: Float[Array, "..."]) -> Float[Array, "..."]:
    """The logarithm of a quotient, in which zero by zero is zero."""
    return jnp.where(a == -jnp.inf, -jnp.inf, a - b)


def _relative(log_weights: Float[Array, "values edges"]) -> Float[Array, "values edges"]:
    return _less(log_weights, jnp.max(log_weights, axis=0))


def _law(log_weights: Float[Array, "values edges"]) -> Float[Array, "values edges"]:
    """Probabilities, of messages whose largest value is zero; of no value, if none is possible."""
    weights = jnp.exp(log_weights)
    return weights / jnp.maximum(jnp.sum(weights, axis=0), 1)


def _log_sum(log_weights: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    if log_weights.shape[axis] == 1:
        return jnp.squeeze(log_weights, axis)
    top = jnp.max(log_weights, axis=axis, keepdims=True)
    shift = jnp.maximum(top, jnp.finfo(top.dtype).min)
    total = jnp.sum(jnp.exp(log_weights - shift), axis=axis)
    return jnp.log(total) + jnp.squeeze(top, axis)
