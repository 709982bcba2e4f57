"""`natgfn report`: pages from the folders that other commands have left behind."""

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NatgfnError
from .case import is_fit
from .voice import Voice

if TYPE_CHECKING:
    from ..report import Graph, HeatMap, Subject, Table
    from ..sweeps import Sweep
    from ..training import Run

SUMMARY = "summary.json"
"""In the folder of `natgfn dag` and `natgfn graphical`: what they found."""


def write_report(folders: Sequence[Path], page: Path) -> None:
    """Write one page about all those folders."""
    from ..report import write_page

    write_page([subject_in(folder, name) for folder, name in _named(folders)], page)


def tell_page(
    folder: Path, voice: Voice, run: "Run | Sweep | None" = None, name: str | None = None
) -> Path | None:
    """Write the page of a command that has ended, and say where it is, or why there is none."""
    from ..report import PAGE

    path = folder / (name or PAGE)
    try:
        page = path if run is None else run.report(path)
        if run is None:
            write_report([folder], page)
    except NatgfnError as error:
        voice.say(f"no page about it: {error}")
        return None
    voice.say(f"a page about it, for your browser: {page}")
    return page


def _named(folders: Sequence[Path]) -> list[tuple[Path, str]]:
    """Folders with names that tell them apart: the last part, or as much as that takes."""
    whole = [folder.resolve() for folder in folders]
    if len(set(whole)) < len(whole):
        raise NatgfnError("a folder was given twice: name each run once")
    depth = 1
    while len({path.parts[-depth:] for path in whole}) < len(whole):
        depth += 1
    return [
        (folder, "/".join(path.parts[-depth:])) for folder, path in zip(folders, whole, strict=True)
    ]


def subject_in(folder: Path, name: str) -> "Subject":
    """What the files in a folder say."""
    from ..report import Subject
    from ..training import RECORD

    subject = Subject(name)
    if (folder / RECORD).exists():
        subject = _trained(folder, name)
    elif not (folder / SUMMARY).exists():
        raise NatgfnError(
            f"{folder} holds no run: expected a folder that natgfn train, dag or graphical made"
        )
    return _with_summary(folder, subject)


def _trained(folder: Path, name: str) -> "Subject":
    """What the record of a run says, and the run itself where it can be made again."""
    from ..training import RECORD, Record, load_setup, reopen, subject_from, subject_of

    header, lines = Record(folder / RECORD).read()
    if is_fit(folder):  # its other files have the rest
        return subject_from(header, lines, name)
    try:
        run = reopen(folder, load_setup(folder))
    except NatgfnError as error:
        subject = subject_from(header, lines, name)
        remark = f"The terminal law and samples are missing: {error}."
        return dataclasses.replace(subject, remarks=(*subject.remarks, remark))
    return dataclasses.replace(subject_of(run), name=name)


def _with_summary(folder: Path, subject: "Subject") -> "Subject":
    from ..report import Table, Verdict, flat

    path = folder / SUMMARY
    if not path.exists():
        return subject
    try:
        summary: dict[str, Any] = dict(json.loads(path.read_text()))
        told = {key: summary.pop(key, default) for key, default in _TOLD.items()}
        verdict = summary.get("verdict")
        lines = dict(flat(summary))
        numbers = Table("Numbers", ("name", "value"), list(lines.items()))
        graph = _graph(folder, summary.get("variables"))
        notes = [str(note) for name, note in lines.items() if name == "stability.note"]
        return dataclasses.replace(
            subject,
            command=str(told["command"]),
            verdict=verdict and Verdict(str(verdict["word"]), [*map(str, verdict["why"])]),
            headline={
                what: _brief(lines[name]) for name, what in _HEADLINE.items() if name in lines
            },
            graph=graph,
            settings={**dict(flat(told["options"])), **subject.settings},
            versions={**told["versions"], **subject.versions},
            maps=(*subject.maps, *_maps(folder, graph)),
            tables=(*_edges(graph), numbers, *_samples(folder)),
            remarks=(*subject.remarks, *notes),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NatgfnError(f"{folder} is not as natgfn left it: {error}") from error


_TOLD: dict[str, Any] = {"command": "", "options": {}, "versions": {}}
"""What a summary says besides numbers."""

_HEADLINE = {
    "rows": "rows",
    "expected_edges": "expected number of edges",
    "log_z_relative_to_empty": "log Z, the empty graph having 0",
    "trust.elbo": "ELBO, at most log Z",
    "trust.eubo": "EUBO, at least log Z",
    "quality.effective_sample_share": "effective share of the draws",
    "quality.largest_correction_of_a_marginal": "largest importance correction of an edge",
    "quality.largest_difference_between_seeds": "largest difference of an edge between seeds",
    "distance_to_exact.largest_error_of_a_marginal": "largest error of an edge",
    "trust.largest_difference_from_chains": "largest difference of an edge from chains",
    "trust.largest_corrected_difference_from_chains": "the same, importance-corrected",
    "trust.mean_difference_from_chains": "mean difference of an edge from chains",
    "quality.largest_r_hat": "largest R-hat of an edge",
}
"""Which numbers of a summary come first, and what they are."""


def _brief(text: str) -> str:
    """A number with as many digits as a headline needs."""
    return f"{float(text):.{6 if abs(float(text)) >= 1_000 else 4}g}"


PAIRS = 200
"""The most pairs of variables in the table of edges."""


def _graph(folder: Path, names: list[str] | None) -> "Graph | None":
    """The probabilities of edges between variables of these names, which no CSV has changed."""
    import numpy as np

    from ..report import Graph

    path = folder / "edge_marginals.csv"
    if not path.exists():
        return None
    (_, *columns), *rows = _read_csv(path)
    values = np.array([row[1:] for row in rows], float)
    np.fill_diagonal(values, np.nan)
    names = columns if names is None else [*map(str, names)]
    if values.shape != (len(names), len(names)):
        raise ValueError(f"{path.name} has not the variables of {SUMMARY}")
    return Graph(names, values)


def _edges(graph: "Graph | None") -> "list[Table]":
    """Pairs that may be joined, the most probable first: what the picture shows, in words."""
    import numpy as np

    from ..report import Table

    if graph is None:
        return []
    names, there = graph.names, np.nan_to_num(graph.probabilities)
    joined = np.minimum(there + there.T, 1)
    pairs = np.argwhere(np.triu(joined) >= 0.005).tolist()
    rows = []
    for i, j in sorted(pairs, key=lambda pair: -joined[*pair])[:PAIRS]:
        one, other = (i, j) if there[i, j] >= there[j, i] else (j, i)
        numbers = (there[one, other], there[other, one], joined[i, j])
        rows.append([names[one], names[other], *(f"{x:.3f}" for x in numbers)])
    most = f", the {PAIRS} likeliest" if len(pairs) > PAIRS else ""
    header = ("one", "other", "one → other", "other → one", "joined")
    return [Table(f"Pairs that may be joined{most}", header, rows)]


def _maps(folder: Path, graph: "Graph | None") -> "list[HeatMap]":
    """Probabilities of edges, and of the values of variables."""
    import numpy as np

    from ..report import HeatMap

    maps = []
    if graph is not None:
        names = (graph.names, graph.names)
        title, axes = "probability of each edge", ("source", "target")
        maps.append(HeatMap(title, graph.probabilities, axes, names))
    if (path := folder / "marginals.csv").exists():
        (_, _, *columns), *rows = _read_csv(path)
        cells = np.array([row[: 2 + columns.index("probability") + 1] for row in rows])
        variables, positions = np.unique(cells[:, 0].astype(int), return_inverse=True)
        levels = cells[:, 1].astype(int)
        values = np.full((len(variables), levels.max() + 1), np.nan)
        values[positions, levels] = cells[:, -1].astype(float)
        names = (variables.astype(str).tolist(), [str(k) for k in range(values.shape[1])])
        maps.append(HeatMap("probability of each value", values, ("variable", "value"), names))
    return maps


def _read_csv(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def _samples(folder: Path) -> "list[Table]":
    """The first of the graphs or assignments that were drawn."""
    import numpy as np

    from ..report import Table, seen
    from ..training import SAMPLES

    if not (path := folder / "samples.npz").exists():
        return []
    with np.load(path, allow_pickle=False) as found:
        if "graphs" in found:
            names = found["names"].tolist()
            edges = [
                ", ".join(f"{names[i]} -> {names[j]}" for i, j in np.argwhere(graph))
                for graph in found["graphs"][:SAMPLES]
            ]
            rewards = [seen(reward) for reward in found["log_rewards"].tolist()]
            return [Table("Samples", ("log R", "edges"), list(zip(rewards, edges, strict=False)))]
        rows = [(" ".join(map(str, values)),) for values in found["values"][:SAMPLES].tolist()]
        return [Table("Samples", ("values of the variables, in order",), rows)]
