"""`natgfn graphical`: from a factor graph in a file to its marginals, exactly or by a sampler."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import NatgfnError
from .case import GRAPHICAL_FIT, remember, spelled, takes
from .files import make_folder, named, picture
from .interrupt import interruptible
from .report import tell_page
from .voice import Voice

if TYPE_CHECKING:
    import numpy as np

    from ..envs import Assignments
    from ..graphical import FactorGraph
    from ..training import Run

app = typer.Typer(
    help="Factor graphs: log Z, marginals and samples, exactly or by a trained sampler.",
    no_args_is_help=True,
)

_DRAWS = 0x9A5
"""Sets the keys of the last draws apart from those of training."""


@dataclass(frozen=True)
class Case:
    """A model and how to take it apart, as options of a command."""

    model: Annotated[Path, typer.Argument(help="A UAI file, MARKOV or BAYES.")]
    evidence: Annotated[
        Path | None, typer.Option(help="A UAI evidence file: what is observed.")
    ] = None
    order: Annotated[
        str,
        typer.Option(
            help="Of assignment: min_fill, min_degree, numbered, or auto, the smallest of these."
        ),
    ] = "auto"
    max_entries: Annotated[
        int | None,
        typer.Option(
            min=1, help="Numbers in the tables of a junction tree, at most; some 300 MB by default."
        ),
    ] = None

    @property
    def most_entries(self) -> int:
        from ..graphical import MOST_ENTRIES

        return self.max_entries or MOST_ENTRIES

    def graph(self) -> "FactorGraph":
        from ..graphical import read_uai

        return read_uai(self.model, self.evidence)

    def summary(self) -> dict[str, Any]:
        evidence = None if self.evidence is None else str(self.evidence)
        return {"model": str(self.model), "evidence": evidence}


Out = Annotated[Path, typer.Option(help="The folder to write to.", parser=named, metavar="FOLDER")]
Samples = Annotated[int, typer.Option(min=2, help="Assignments to draw in the end.")]


@app.command(epilog="For example: natgfn graphical exact model.uai --evidence model.evid")
@takes(Case, Voice)
def exact(
    case: Case,
    voice: Voice,
    out: Out = Path("graphical"),
    samples: Samples = 1_000,
    seed: Annotated[int, typer.Option(help="Of the samples.")] = 0,
) -> None:
    """The exact log Z, marginals, most probable assignment and samples, by a junction tree."""
    import jax
    import numpy as np

    from ..graphical import infer

    graph = case.graph()
    make_folder(out)
    order, about = _stated(graph, case.order, voice)
    if about["entries"] > case.most_entries:
        _only_log_z(graph, order, case, about, out, voice)
        return
    found = infer(graph, order, most=case.most_entries)
    marginals = found.marginals
    _write_marginals(out, {"probability": marginals})
    best = ((graph.name(v), int(value)) for v, value in enumerate(found.best))
    _write_csv(out / "most_probable.csv", ("variable", "value"), best)
    values = found.sample(samples, key=jax.random.key(seed))
    np.savez_compressed(out / "samples.npz", values=_narrow(values, graph))
    first = {"log_z": found.log_z, "best_log_value": found.best_log_value}
    own = {"order": case.order, "samples": samples, "seed": seed}
    command = spelled("graphical exact", case, {"samples": samples, "seed": seed, "out": out})
    told = _write_summary(out, first | about | case.summary() | own | {"command": command})
    picture(voice, lambda: _draw(marginals, out))
    share = np.exp(found.best_log_value - found.log_z)
    voice.say(
        f"log Z {found.log_z:.8g}; the most probable assignment has log R "
        f"{found.best_log_value:.8g}, a probability of {share:.3g}",
        f"marginals, that assignment, {samples} samples and a picture are in {out}",
    )
    voice.tell(told | {"out": out, "report": tell_page(out, voice)})


def _stated(graph: "FactorGraph", how: str, voice: Voice) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The order of assignment, and how large the model is: also said, before anything is made."""
    from ..graphical import assignment_order, separators, table_size, width

    order = assignment_order(graph, how)
    seen = separators(graph, order)
    about = {
        "variables": graph.num_variables,
        "factors": len(graph.scopes),
        "width": width(seen),
        "entries": table_size(graph, seen, order),
    }
    voice.say(
        f"{about['variables']} variables, {about['factors']} factors, width {about['width']}; "
        f"the tables of a junction tree have {_count(about['entries'])} entries"
    )
    return order, about


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**9 else f"{Decimal(number):.3g}"  # more than floats hold


def _only_log_z(
    graph: "FactorGraph",
    order: tuple[int, ...],
    case: Case,
    about: dict[str, Any],
    out: Path,
    voice: Voice,
) -> None:
    """What one elimination gives, where a junction tree is too large to keep."""
    import numpy as np

    from ..graphical import TooWide, log_partition

    otherwise = f"natgfn graphical fit {case.model} trains a sampler"
    try:
        log_z = log_partition(graph, order)
    except TooWide as error:
        raise NatgfnError(
            f"{case.model} is too wide for exact inference, at width {about['width']} with tables "
            f"of {_count(about['entries'])} entries: {otherwise}"
        ) from error
    if not np.isfinite(log_z):
        raise NatgfnError(f"{case.model}: no assignment of the variables has a positive weight")
    about |= case.summary() | {"command": spelled("graphical exact", case, {"out": out})}
    told = _write_summary(out, {"log_z": log_z} | about | {"order": case.order})
    voice.say(
        f"log Z {log_z:.8g}, by one elimination; it is in {out}",
        f"exact marginals need a junction tree, larger than --max-entries {case.most_entries}: "
        f"raise it, or {otherwise}",
    )
    voice.tell(told | {"out": out})


@app.command(epilog="For example: natgfn graphical fit model.uai --out run --updates 500")
@takes(Case, Voice)
def fit(
    case: Case,
    voice: Voice,
    out: Out = Path("graphical"),
    updates: Annotated[int, typer.Option(help="Of the sampler.")] = 1_000,
    seed: Annotated[int, typer.Option(help="Of the parameters and of all draws.")] = 0,
    seeds: Annotated[int, typer.Option(help="Samplers, trained one after the other.")] = 1,
    samples: Samples = 10_000,
    rule: Annotated[
        str,
        typer.Option(
            help="auto (without noise where a junction tree fits), or any rule of natgfn list with "
            "its settings, as in '{name=\"Adam\", rate=3e-4}'."
        ),
    ] = "auto",
    size: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The most variables that the policy sees, the nearest ones; all that matter by "
            "default, or as many as the updates can teach where these are too many.",
        ),
    ] = None,
) -> None:
    """Train a sampler of assignments, and say how far it is from the target."""
    from ..envs import Assignments
    from ..policies import ContextTable
    from ..training import Setup, named, run

    with interruptible(out, f"natgfn resume {out}"):
        chosen, graph = None if rule == "auto" else named("rule", rule), case.graph()
        order, about = _stated(graph, case.order, voice)
        env = Assignments(graph, order, case.most_entries)
        policy = None if size is None else ContextTable(_require_small(env, size))
        setup = Setup(env, chosen, policy=policy, updates=updates, seed=seed, seeds=seeds)
        own: dict[str, Any] = {"order": case.order, "rule": rule, "size": size}
        options = {"updates": updates, "seed": seed, "seeds": seeds, "samples": samples}
        options |= {"rule": rule, "size": size, "out": out}
        own["command"] = spelled("graphical fit", case, options)
        told = {"samples": samples, "summary": about | case.summary() | own}
        remember(out / GRAPHICAL_FIT, told)
        _finish(run(setup, out=out, progress=voice.speaks), told, out, voice)


def _require_small(env: "Assignments", size: int) -> int:
    """The size, unless the table of such a policy would not fit: then one line."""
    from ..graphical import table_size

    seen = env.contexts(size).seen
    entries, most = table_size(env.graph, seen, env.order), env.max_entries
    if entries > most:
        raise NatgfnError(
            f"a policy that sees {max(map(len, seen))} variables needs {_count(entries)} logits, "
            f"more than --max-entries {most}: give a smaller --size"
        )
    return size


def resume_fit(folder: Path, voice: Voice) -> None:
    """Go on with an interrupted `natgfn graphical fit`, from its record alone."""
    from ..training import load_setup, run

    try:
        told = json.loads((folder / GRAPHICAL_FIT).read_text())
        told = {"samples": int(told["samples"]), "summary": dict(told["summary"])}
    except (ValueError, KeyError, TypeError) as error:
        raise NatgfnError(f"{folder / GRAPHICAL_FIT} does not describe a fit: {error}") from error
    trained = run(load_setup(folder), out=folder, resume=True, progress=voice.speaks)
    _finish(trained, told, folder, voice)


def _finish(trained: "Run", told: dict[str, Any], out: Path, voice: Voice) -> None:
    """Write what a trained sampler says, and say how far to trust it."""
    import numpy as np

    from ..envs import Assignments
    from ..graphical import infer, loopy
    from ..metrics import message_marginals, message_metrics, weight_metrics

    setup, env = trained.setup, trained.setup.env
    assert isinstance(env, Assignments)
    graph = env.graph
    values, log_weights = _draws(trained, told["samples"])
    beliefs = loopy(graph)
    columns = _estimated(values, log_weights, graph)
    metrics = None
    if env.tree is not None:
        law = message_marginals(env, trained.state.flow).mean(axis=0)
        metrics = message_metrics(env, trained.state.flow)
        exactly = infer(graph, env.order, most=env.max_entries).marginals
        columns = {
            "probability": [row[:k] for row, k in zip(law, graph.cards, strict=True)],
            "exact": exactly,
        }
    singles = [row[:k] for row, k in zip(np.exp(beliefs.log_singles), graph.cards, strict=True)]
    reference = columns["exact" if metrics else "corrected"]
    differences = [np.abs(a - b).max() for a, b in zip(singles, reference, strict=True)]
    summary = {
        "log_z": env.log_z,
        "by_messages": metrics and {name: found.tolist() for name, found in metrics.items()},
        "from_samples": weight_metrics(log_weights),
        "loopy": {
            "converged": bool(beliefs.converged),
            "iterations": int(beliefs.iterations),
            "log_z": float(beliefs.log_z),
            "largest_difference_of_a_marginal": float(max(differences)),
        },
        "updates": setup.updates,
        "rejected": int(np.sum(trained.state.rejected)),
        "samples": len(values),
        "seed": setup.seed,
        "seeds": setup.seeds,
    }
    _write_marginals(out, columns | {"loopy": singles})
    np.savez_compressed(out / "samples.npz", values=_narrow(values, graph), log_weights=log_weights)
    found = _write_summary(out, summary | told["summary"])
    picture(voice, lambda: _draw(columns["probability"], out))
    voice.say(*_how_it_went(summary), f"marginals, samples and a picture are in {out}")
    voice.tell(found | {"out": out, "report": tell_page(out, voice)})


def _draws(trained: "Run", samples: int) -> tuple["np.ndarray", "np.ndarray"]:
    """Assignments, of each seed its share, and their log-weights."""
    import jax
    import numpy as np

    from ..envs import Assignments
    from ..metrics import draw

    setup, env = trained.setup, trained.setup.env
    assert isinstance(env, Assignments)
    values, log_weights = [], []
    for number in range(setup.seeds):
        key = jax.random.fold_in(jax.random.key(setup.seed + number), _DRAWS)
        drawn = draw(env, trained.flow(number), -(-samples // setup.seeds), key=key)
        found = np.asarray(drawn.objects.values)
        values.append(found)
        log_weights.append(env.graph.log_value(found) + drawn.log_ratios)
    return np.concatenate(values), np.concatenate(log_weights)


def _estimated(
    values: "np.ndarray", log_weights: "np.ndarray", graph: "FactorGraph"
) -> dict[str, list["np.ndarray"]]:
    """Marginals of the sampler and, with importance weights, of the target; their errors."""
    import numpy as np

    plain = np.full(len(values), 1 / len(values))
    weights = np.exp(log_weights - log_weights.max())
    columns: dict[str, list[np.ndarray]] = {}
    for name, share in {"probability": plain, "corrected": weights / weights.sum()}.items():
        columns[name], columns[f"{name}_se"] = [], []
        for column, card in zip(values.T, graph.cards, strict=True):
            mean = np.bincount(column, share, card)
            squares = np.bincount(column, share**2, card)
            # The sum of share^2 (1[x = a] - mean)^2.
            spread = squares * (1 - 2 * mean) + mean**2 * np.sum(share**2)
            columns[name].append(mean)
            columns[f"{name}_se"].append(np.sqrt(np.maximum(spread, 0.0)))
    return columns


def _how_it_went(summary: dict[str, Any]) -> Iterator[str]:
    drawn, messages = summary["from_samples"], summary["by_messages"]
    share, number = drawn.get("effective_share", 0.0), summary["samples"]
    worst = "" if summary["seeds"] == 1 else " in the worst seed"
    if messages:
        yield (
            f"log Z {summary['log_z']:.8g}, exact; KL(sampler || target) "
            f"{max(messages['kl']):.2g}, the other way {max(messages['reverse_kl']):.2g}, and no "
            f"marginal further than {max(messages['marginal_error']):.2g} from exact "
            f"inference{worst}"
        )
    else:
        known = summary["log_z"]
        exactly = ""
        if known is not None:
            apart = known - drawn["elbo"]
            exactly = f"; log Z is exactly {known:.8g}, so KL(sampler || target) is {apart:.2g}"
        yield (
            f"log Z {drawn['log_z']:.6g} +- {drawn.get('log_z_se', float('inf')):.2g} by "
            f"importance weights, ELBO {drawn['elbo']:.6g} +- "
            f"{drawn.get('elbo_se', float('inf')):.2g}{exactly}"
        )
    trust = "no exact marginals at this width, and no error knows what the draws have missed"
    extra = "" if messages else f"; {trust}"
    yield f"effective sample size {share:.1%} of {number} draws{extra}"
    if summary["rejected"]:
        yield f"{summary['rejected']} updates were not finite, and were rejected"
    beliefs = summary["loopy"]
    state = "converged" if beliefs["converged"] else "has NOT converged"
    beside = "from exact inference" if messages else "from the importance-weighted ones"
    yield (
        f"loopy belief propagation {state}: log Z {beliefs['log_z']:.6g}, a marginal up to "
        f"{beliefs['largest_difference_of_a_marginal']:.2g} {beside}"
    )


def _draw(marginals: list["np.ndarray"], out: Path) -> Path:
    from ..figures import draw_marginals

    return draw_marginals(marginals, out / "marginals.png")


def _narrow(values: "np.ndarray", graph: "FactorGraph") -> "np.ndarray":
    import numpy as np

    return values.astype(np.min_scalar_type(max(graph.cards) - 1))


def _write_marginals(out: Path, columns: dict[str, list["np.ndarray"]]) -> None:
    """A line for each value of each variable; a number is written to its last digit."""
    import numpy as np

    lines = (
        (variable, value, *numbers)
        for variable, parts in enumerate(zip(*columns.values(), strict=True))
        for value, numbers in enumerate(np.stack(parts, axis=1).tolist())
    )
    _write_csv(out / "marginals.csv", ("variable", "value", *columns), lines)


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    from ..training import cell

    with path.open("w", newline="", encoding="utf-8") as file:
        written = csv.writer(file)
        for line in (header, *lines):
            written.writerow([cell(part) if isinstance(part, str) else part for part in line])


def _write_summary(out: Path, summary: dict[str, Any]) -> dict[str, Any]:
    from ..training import plain, versions

    told = plain(summary | {"versions": versions()})
    (out / "summary.json").write_text(json.dumps(told, indent=2, allow_nan=False) + "\n")
    return told
