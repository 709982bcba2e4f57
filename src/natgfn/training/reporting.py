"""A run as the subject of a report page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float, Int

from ..envs import OnGrid, State
from ..metrics import draw
from ..report import HeatMap, Law, Subject, Table, flat, seen
from ..statespace import StateSpace
from ..watch import CERTIFICATE
from .command import command_of
from .record import by_name, git_state, unknown_in, versions

if TYPE_CHECKING:
    from .result import Run

SAMPLES = 20
"""Objects that a page lists."""

CELLS = 128**2
"""The most cells of a grid that a page draws."""

_DRAWS = 512  # as many as `watch.Sampled` looks at by default, so that no new program is compiled


def subject_of(run: Run) -> Subject:
    """What a page says of a run in memory."""
    made = {"configuration": run.configuration, "versions": versions(), "git": git_state()}
    parts = (run.setup.env, run.setup.rule)
    kinds = [part.env if isinstance(part, StateSpace) else part for part in parts]
    name = run.folder.name if run.folder else ", ".join(type(kind).__name__ for kind in kinds)
    subject = subject_from(made, run.history, name)
    env = run.setup.env
    if not isinstance(env, StateSpace):
        return dataclasses.replace(subject, tables=(*subject.tables, _drawn(run)))
    law = Law(np.exp(env.log_target), run.laws.mean(axis=0))
    tables = (*subject.tables, _from_law(env, law))
    return dataclasses.replace(subject, law=law, maps=_maps(env, law), tables=tables)


def subject_from(header: Mapping[str, Any], history: list[dict[str, Any]], name: str) -> Subject:
    """What a page says of a record alone."""
    configuration = header["configuration"]
    git = header.get("git")
    commit = {"commit": git["commit"] + (" with changes" if git["changed"] else "")} if git else {}
    certificates = [line.get(CERTIFICATE, {}) for line in history]
    metrics = by_name(history)
    return Subject(
        name=name,
        command=command_of(configuration),
        settings=dict(flat(configuration)),
        versions={**header.get("versions", {}), **commit},
        steps=np.array([line["step"] for line in history], int),
        seconds=np.array([line["seconds"] for line in history], float),
        metrics=metrics,
        certificates=by_name(certificates),
        remarks=tuple(_remarks(metrics, unknown_in(history))),
    )


def _remarks(
    metrics: Mapping[str, Float[np.ndarray, "lines seeds"]], unknown: Mapping[str, int]
) -> Iterator[str]:
    if metrics and (last := metrics["rejected"][-1]).any():
        by_seed = ", ".join(f"{count:.0f}" for count in last)
        yield (
            f"{last.sum():.0f} steps were rejected, because they would have made parameters "
            f"infinite or NaN; by seed: {by_seed}."
        )
    if unknown:
        by_name = ", ".join(f"{name} {count:,}" for name, count in sorted(unknown.items()))
        yield f"{sum(unknown.values()):,} numbers of the record are NaN; by name: {by_name}."


def _from_law(space: StateSpace, law: Law) -> Table:
    """Objects drawn from the exact law of a run: no trajectory is needed."""
    rng = np.random.default_rng(0)
    numbers = rng.choice(len(law.learned), SAMPLES, p=law.learned / law.learned.sum())
    objects = _texts(jax.tree.map(lambda x: np.asarray(x)[numbers], space.terminals))
    columns = [x[numbers].tolist() for x in (space.log_rewards, law.target, law.learned)]
    rows = [(text, *map(seen, found)) for text, *found in zip(objects, *columns, strict=True)]
    return Table("Samples", ("object", "log R", "target probability", "learned probability"), rows)


def _drawn(run: Run) -> Table:
    """Objects that the first seed draws."""
    draws = draw(run.setup.env, run.flow(0), _DRAWS, key=jax.random.key(0))
    objects = _texts(jax.tree.map(lambda x: np.asarray(x)[:SAMPLES], draws.objects))
    rewards = (seen(value) for value in draws.log_rewards)
    rows = [(text, reward) for text, reward in zip(objects, rewards, strict=False)]
    return Table("Samples", ("object", "log R"), rows)


def _texts(objects: State) -> list[str]:
    """Each object as text: its fields, without those that are the same in all of them."""
    fields = {
        jax.tree_util.keystr(where).strip("."): np.asarray(leaf)
        for where, leaf in jax.tree_util.tree_leaves_with_path(objects)
    }
    telling = {name: x for name, x in fields.items() if (x != x[:1]).any()} or fields
    return [
        "  ".join(f"{name}={_numbers(np.asarray(x[i]))}".lstrip("=") for name, x in telling.items())
        for i in range(len(next(iter(telling.values()))))
    ]


def _numbers(array: np.ndarray) -> str:
    """The entries of an array, side by side where each has one digit."""
    entries = array.astype(int).ravel().tolist()
    between = "" if max(entries) <= 9 and min(entries) >= 0 and len(entries) > 8 else " "
    text = between.join(map(str, entries))
    return text if len(text) <= 160 else text[:159] + "…"


def _maps(space: StateSpace, law: Law) -> tuple[HeatMap, ...]:
    """The target and the learned law of objects that have two coordinates, as pictures."""
    if not isinstance(space.env, OnGrid):
        return ()
    places: Int[np.ndarray, "objects dims"] = np.asarray(
        jax.vmap(space.env.coordinates)(space.terminals)
    )
    varying = np.flatnonzero((places != places[:1]).any(axis=0))
    if len(varying) != 2:
        return ()
    first, second = places[:, varying].T
    shape = (int(second.max()) + 1, int(first.max()) + 1)
    if shape[0] * shape[1] > CELLS:
        return ()
    maps = []
    for title, values in (("target", law.target), ("learned law", law.learned)):
        cells = np.full(shape, np.nan)
        cells[second, first] = values
        axes = (f"coordinate {varying[1]}", f"coordinate {varying[0]}")
        maps.append(HeatMap(title, cells, axes, logarithmic=True))
    return tuple(maps)
