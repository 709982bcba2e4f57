r"""Factor graphs: rewards that factorise over few variables at a time."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

if TYPE_CHECKING:
    import networkx

Scope: TypeAlias = tuple[int, ...]
"""The variables of a factor, each once, in the order of the axes of its table."""


class FactorGraph(eqx.Module):
    r"""$R(x) = \prod_\alpha \psi_\alpha(x_\alpha)$ (`eq:appendix_factorized_reward`).

    Variable $v$ takes the values $0, \dots, k_v - 1$. A factor may be zero: its logarithm is then
    minus infinity.

    Attributes:
        cards: $k_v$, the number of values of each variable.
        scopes: the variables of each factor.
        log_table: $\log \psi_\alpha$, factor after factor, each flattened with its last variable
            fastest.
        names: of the variables; their numbers if there are none.
    """

    cards: tuple[int, ...] = eqx.field(static=True)
    scopes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    log_table: Float[np.ndarray, " entries"]
    names: tuple[str, ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        cards = self.cards  # equinox takes long over attributes of what is being made
        for variable, card in enumerate(cards):
            if card < 1:
                raise ValueError(f"variable {variable} must have at least one value, got {card}")
        for number, scope in enumerate(self.scopes):
            if len(set(scope)) < len(scope):
                raise ValueError(f"factor {number} names a variable twice: {scope}")
            if any(not 0 <= variable < len(cards) for variable in scope):
                wanted = f"variables from 0 to {len(cards) - 1}"
                raise ValueError(f"factor {number} must have {wanted}, got {scope}")
        wanted = sum(prod(cards[v] for v in scope) for scope in self.scopes)
        if self.log_table.size != wanted:
            raise ValueError(f"the factors need {wanted} entries, got {self.log_table.size}")
        if not np.all(self.log_table < np.inf):
            raise ValueError("a log-factor must be a number below infinity, or minus infinity")
        if self.names and len(self.names) != len(self.cards):
            wanted = f"a name for each of {len(self.cards)} variables"
            raise ValueError(f"expected {wanted}, got {len(self.names)}")

    @classmethod
    def of(
        cls,
        cards: Sequence[int],
        factors: Iterable[tuple[Sequence[int], Float[np.ndarray, "..."]]],
        names: Sequence[str] = (),
    ) -> "FactorGraph":
        """From pairs of a scope and the logarithms of its factor, an axis a variable."""
        cards, scopes, tables = tuple(int(k) for k in cards), [], []
        for scope, log_factor in factors:
            table = np.asarray(log_factor, np.float64)
            wanted = tuple(cards[v] for v in scope if 0 <= v < len(cards))
            if table.shape != wanted:
                raise ValueError(f"the factor of {tuple(scope)} must be {wanted}, is {table.shape}")
            scopes.append(tuple(int(v) for v in scope))
            tables.append(table.ravel())
        return cls(cards, tuple(scopes), np.concatenate([*tables, np.zeros(0)]), tuple(names))

    @property
    def num_variables(self) -> int:
        return len(self.cards)

    def name(self, variable: int) -> str:
        return self.names[variable] if self.names else str(variable)

    def shape(self, scope: Sequence[int]) -> tuple[int, ...]:
        """The number of values of each of some variables."""
        return tuple(self.cards[v] for v in scope)

    def factors(self) -> Iterator[tuple[Scope, Float[np.ndarray, "..."]]]:
        """Every scope, and the logarithms of its factor, an axis a variable."""
        shape_of, log_table, start = self.shape, self.log_table, 0
        for scope in self.scopes:
            shape = shape_of(scope)
            yield scope, np.reshape(log_table[start : start + prod(shape)], shape)
            start += prod(shape)

    def log_value(self, values: Int[np.ndarray, "*n variables"]) -> Float[np.ndarray, "*n"]:
        r"""$\log R(x)$ of complete assignments, in float64."""
        values = np.asarray(values)
        total = np.zeros(values.shape[:-1])
        for scope, log_factor in self.factors():
            total = np.asarray(total + log_factor[tuple(values[..., v] for v in scope)])
        return total

    def given(self, evidence: Mapping[int, int]) -> "FactorGraph":
        """The same with some variables observed.

        They stay, with one value possible; every other factor has its slice at that value, so that
        what is observed connects nothing.
        """
        for variable, value in evidence.items():
            if not 0 <= variable < self.num_variables:
                wanted = f"a variable from 0 to {self.num_variables - 1}"
                raise ValueError(f"evidence must be on {wanted}, got {variable}")
            if not 0 <= value < self.cards[variable]:
                wanted = f"from 0 to {self.cards[variable] - 1}"
                raise ValueError(f"variable {self.name(variable)} takes {wanted}, got {value}")
        factors = []
        for scope, log_factor in self.factors():
            index = tuple(evidence.get(v, slice(None)) for v in scope)
            left = tuple(v for v in scope if v not in evidence)
            factors.append((left, np.asarray(log_factor[index])))
        for variable, value in evidence.items():
            only = np.where(np.arange(self.cards[variable]) == value, 0.0, -np.inf)
            factors.append(((variable,), only))
        return FactorGraph.of(self.cards, factors, self.names)

    def neighbours(self) -> "networkx.Graph":
        """Which variables share a factor."""
        import networkx as nx  # takes long to import

        graph = nx.Graph()
        graph.add_nodes_from(range(self.num_variables))
        for scope in self.scopes:
            graph.add_edges_from((a, b) for a in scope for b in scope if a < b)
        return graph
