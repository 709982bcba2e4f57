"""A table, its target and how to fit it, as options of the commands of `natgfn dag`."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import NatgfnError

if TYPE_CHECKING:
    from ..dag import Data, Prior, Weights


@dataclass(frozen=True)
class Case:
    """A table and its target, as options of a command."""

    data: Annotated[
        Path, typer.Argument(help="A CSV file with names in its first line, or sachs, our example.")
    ]
    forbid: Annotated[
        list[str] | None, typer.Option(metavar="A->B", help="An edge that no graph has.")
    ] = None
    require: Annotated[
        list[str] | None, typer.Option(metavar="A->B", help="An edge that every graph has.")
    ] = None
    discrete: Annotated[bool, typer.Option(help="Values are levels; text is welcome.")] = False
    log: Annotated[bool, typer.Option(help="Take natural logarithms first.")] = False
    standardise: Annotated[bool, typer.Option(help="Give columns mean 0 and variance 1.")] = True
    temperature: Annotated[
        str,
        typer.Option(
            help="The power of the likelihood: 1 is the posterior, paper is 1/sqrt(rows)."
        ),
    ] = "1"
    edge_penalty: Annotated[
        float | None, typer.Option(help="For each edge; 0, or 0.5 at temperature paper.")
    ] = None
    max_parents: Annotated[int | None, typer.Option(help="The most parents of a variable.")] = None
    interventions: Annotated[
        Path | None,
        typer.Option(
            help="A CSV file of one column: for each row, the variables that were set from "
            "outside, separated by semicolons."
        ),
    ] = None

    def table(self) -> "Data":
        from .. import dag

        packaged = str(self.data) == "sachs" and not self.data.exists()
        return dag.load(
            dag.sachs() if packaged else self.data,
            discrete=self.discrete,
            log=self.log,
            standardise=self.standardise,
            interventions=self.interventions,
        )

    def prior(self) -> "Prior":
        from ..dag import PAPER_PENALTY, Prior

        default = PAPER_PENALTY if self.temperature == "paper" else 0.0
        return Prior(
            edge_penalty=default if self.edge_penalty is None else self.edge_penalty,
            max_parents=self.max_parents,
            require=tuple(map(_edge, self.require or ())),
            forbid=tuple(map(_edge, self.forbid or ())),
        )

    def power(self) -> float | Literal["paper"]:
        if self.temperature == "paper":
            return "paper"
        try:
            return float(self.temperature)
        except ValueError as error:
            raise NatgfnError(
                f"temperature must be a number or paper, got {self.temperature!r}"
            ) from error

    def weights(self) -> "Weights":
        """The table with its target: what a child's data say of its parents."""
        from ..dag import Weights, score_for

        table = self.table()
        return Weights.of(table, score_for(table, None), self.prior(), self.power())

    def summary(self, table: "Data") -> dict[str, Any]:
        """What the target was, for `summary.json`."""
        prior = self.prior()
        options = {
            "data": str(self.data),
            "score": "BDeu" if self.discrete else "BGe",
            "discrete": self.discrete,
            "log": self.log,
            "standardise": self.standardise and not self.discrete,
            "temperature": self.power(),
            "edge_penalty": prior.edge_penalty,
            "max_parents": prior.max_parents,
            "require": ["->".join(edge) for edge in prior.require],
            "forbid": ["->".join(edge) for edge in prior.forbid],
            "interventions": None if self.interventions is None else str(self.interventions),
        }
        return {"rows": len(table.values), "variables": list(table.names), "options": options}


HowMany = Annotated[
    int | None,
    typer.Option(help="Parents of a variable in all combinations, with one besides; else as fit."),
]
Seed = Annotated[int, typer.Option(help="Of the parameters and of all draws.")]
Seeds = Annotated[int, typer.Option(help="Samplers, trained one after the other.")]


@dataclass(frozen=True)
class Fit:
    """How a sampler is trained and judged, as options of a command."""

    updates: Annotated[
        int | None, typer.Option(help="Of the sampler; 4,000 unless there are minutes.")
    ] = None
    minutes: Annotated[
        float | None, typer.Option(help="To keep to, chains and all, in place of updates.")
    ] = None
    seed: Seed = 0
    seeds: Seeds = 1
    samples: Annotated[int, typer.Option(help="Graphs to draw in the end.")] = 10_000
    rule: Annotated[
        str,
        typer.Option(
            help="adam, natural, or any rule of natgfn list with its settings, as in "
            "'{name=\"Adam\", rate=3e-4}'."
        ),
    ] = "adam"
    candidates: HowMany = None
    evidence: Annotated[
        float | None,
        typer.Option(
            help="Minutes of independent chains, where exact sums take too long; 2 unless there "
            "are minutes of all."
        ),
    ] = None

    def decided(self) -> "Fit":
        """With updates and minutes of evidence, or else with minutes for everything."""
        if self.minutes is None:
            updates = 4_000 if self.updates is None else self.updates
            evidence = 2.0 if self.evidence is None else self.evidence
            return replace(self, updates=updates, evidence=evidence)
        if self.updates is not None or self.evidence is not None:
            raise NatgfnError("give minutes, which are for everything, or updates and evidence")
        require_positive(self.minutes)
        return self


def require_positive(minutes: float) -> None:
    """Refuse minutes that are none."""
    if not 0 < minutes < math.inf:
        raise NatgfnError(f"minutes must be positive, got {minutes:g}")


def _edge(text: str) -> tuple[str, str]:
    source, arrow, target = (part.strip() for part in text.partition("->"))
    if not (source and arrow and target):
        raise NatgfnError(f"expected an edge such as A->B, got {text!r}; quote it: 'A->B'")
    return source, target
