"""What a sweep runs: settings times seeds, each a trial with a folder of its own."""

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import equinox as eqx
import numpy as np

from ..errors import NatgfnError, require_whole
from ..training import Setup, describe, numbers, plain, put, read_settings, setup_from, write_whole

STUDY = "sweep.json"
"""The file of a sweep's folder that says what its trials are."""

MOST = 100_000
"""Trials of a sweep."""

Over: TypeAlias = Mapping[str, Sequence[Any] | np.ndarray]
"""What varies: values by dotted name."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One setting with one seed.

    Attributes:
        setting: the number of the setting.
        values: what is varied, by dotted name, as text.
        setup: what is run.
    """

    setting: int
    values: Mapping[str, str]
    setup: Setup

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.setting:04d}-seed-{self.setup.seed}"

    @property
    def label(self) -> str:
        """What is varied, as a person reads it."""
        return ", ".join(f"{key}={value}" for key, value in self.values.items()) or "as it is"


@dataclasses.dataclass(frozen=True)
class Study:
    """All trials of a sweep, those of a setting side by side."""

    trials: tuple[Trial, ...]

    def description(self) -> list[dict[str, Any]]:
        """As plain JSON: a sweep goes on only if this is the same."""
        return [
            {
                "setting": trial.setting,
                "values": dict(trial.values),
                "setup": trial.setup.configuration(),
            }
            for trial in self.trials
        ]

    def keep(self, folder: Path) -> None:
        """Write down what the trials are, unless it is known; another sweep is not overwritten."""
        path, text = folder / STUDY, json.dumps(plain(self.description()), indent=1) + "\n"
        try:
            if path.exists():
                if path.read_text() != text:
                    raise NatgfnError(
                        f"{folder} holds a sweep of other settings: give it the same ones to go "
                        "on, or choose another folder"
                    )
                return
            write_whole(path, lambda file: file.write(text.encode()))
        except (OSError, UnicodeDecodeError) as error:
            raise NatgfnError(f"cannot use {path}: {error}") from error


def study_in(folder: Path) -> Study:
    """What a sweep's folder says that its trials are."""
    path = folder / STUDY
    try:
        told = numbers(json.loads(path.read_text()))
        return Study(
            tuple(
                Trial(int(one["setting"]), dict(one["values"]), setup_from(one["setup"]))
                for one in told
            )
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NatgfnError(f"{path} does not describe a sweep: {error}") from error
    except NatgfnError as error:
        raise NatgfnError(
            f"{folder} cannot be made again from {STUDY} ({error}); go on with the call or command "
            "that it was made with"
        ) from error


def vary(setup: Setup, over: Over) -> Study:
    """Every combination of the values of some settings, with every seed of a setup.

    Args:
        setup: everything else; its `seeds` are those of each setting.
        over: values by dotted name, such as `{"rule.rate": [0.01, 0.1], "batch": [64, 128]}`.
    """
    for name, values in over.items():
        if isinstance(values, str) or not len(values):
            raise ValueError(f"{name} needs a list of values, got {values!r}")
    setups = []
    for combination in _combinations(over):
        one = setup
        for name, value in zip(over, combination, strict=True):
            one = _replaced(one, name.split("."), value, name)
        setups.append(({k: _text(v) for k, v in zip(over, combination, strict=True)}, one))
    return _with_seeds(setups)


def study_from(path: Path | None, settings: Sequence[str]) -> Study:
    """A study from a TOML file, whose table `sweep` has what varies, and `key=a,b,c` settings."""
    table = read_settings(path)
    varied = table.pop("sweep", {})
    if not isinstance(varied, dict):
        raise NatgfnError(f"sweep: expected a table of settings with their values, got {varied!r}")
    over = {name: _listed(name, value) for name, value in varied.items()}
    fixed = []
    for text in settings:
        name, equals, value = text.partition("=")
        values = values_of(value) if equals else [value]
        over.pop(name, None)
        if len(values) > 1:
            over[name] = values
        else:
            fixed.append(f"{name}={values[0]}" if equals else text)
    setups = []
    for combination in _combinations(over):
        chosen = [f"{name}={value}" for name, value in zip(over, combination, strict=True)]
        setup = setup_from(put(table, [*fixed, *chosen]))
        setups.append((dict(zip(over, combination, strict=True)), setup))
    return _with_seeds(setups)


def values_of(text: str) -> list[str]:
    """The values that a text stands for: `a,b,c`, `range(first, last, step)`, or
    `log(first, last, count)` with values evenly spaced on a logarithmic scale; both have both ends.
    """
    if spaced := re.fullmatch(r"(range|log)\((.*)\)", text.strip()):
        kind, inside = spaced.groups()
        try:
            first, last, third = (float(part) for part in inside.split(","))
        except ValueError:
            raise NatgfnError(
                f"expected range(first, last, step) or log(first, last, count), got {text!r}"
            ) from None
        return [_text(value) for value in _spaced(kind, first, last, third, text)]
    return _split(text)


def _spaced(kind: str, first: float, last: float, third: float, text: str) -> list[float]:
    if kind == "log":
        if not (0 < first < np.inf and 0 < last < np.inf and third in range(1, MOST)):
            raise NatgfnError(f"log needs two positive numbers and how many, got {text!r}")
        return [float(f"{x:.6g}") for x in np.geomspace(first, last, int(third))]
    if not (np.isfinite([first, last, third]).all() and third * (last - first) > 0):
        raise NatgfnError(f"range needs a step from its first number to its last, got {text!r}")
    count = int((last - first) / third * (1 + 1e-12)) + 1
    if count > MOST:
        raise NatgfnError(f"{text} has {count:,} values: expected at most {MOST:,}")
    return [float(f"{first + third * k:.12g}") for k in range(count)]


def _split(text: str) -> list[str]:
    """At commas outside of brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += 0 if quote else (letter in "([{") - (letter in ")]}")
        if letter == "," and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _listed(name: str, value: Any) -> list[str]:
    """The values of a setting in the table `sweep` of a file."""
    if isinstance(value, str):
        return values_of(value)
    if isinstance(value, list) and value and not any(isinstance(x, dict) for x in value):
        return [_text(part) for part in value]
    raise NatgfnError(f"sweep: {name} needs a list of values, got {value!r}")


def _text(value: Any) -> str:
    """A value as a person would type it; of an object, its class and what is not as usual."""
    if isinstance(value, eqx.Module):
        usual = {field.name: describe(field.default) for field in dataclasses.fields(value)}
        told = {name: x for name, x in describe(value).items() if usual.get(name, x) != x}
        return " ".join([type(value).__name__, *(f"{k}={_text(x)}" for k, x in told.items())])
    if isinstance(value, float | np.floating) and float(value).is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _replaced(thing: Any, path: Sequence[str], value: Any, name: str) -> Any:
    """A module with one field changed, however deep."""
    field, *deeper = path
    if not isinstance(thing, eqx.Module) or field not in {
        f.name for f in dataclasses.fields(thing)
    }:
        raise ValueError(f"{name}: {type(thing).__name__} has no field {field!r} to vary")
    value = value.item() if isinstance(value, np.generic) else value
    new = _replaced(getattr(thing, field), deeper, value, name) if deeper else value
    return dataclasses.replace(thing, **{field: new})


def _combinations(over: Over) -> Iterator[tuple[Any, ...]]:
    count = math.prod(len(values) for values in over.values())
    require_whole("the number of settings", count, 1, MOST)
    return itertools.product(*over.values())


def _with_seeds(setups: Sequence[tuple[Mapping[str, str], Setup]]) -> Study:
    total = sum(setup.seeds for _, setup in setups)
    require_whole("the number of trials, settings times seeds,", total, 1, MOST)
    return Study(
        tuple(
            Trial(number, values, dataclasses.replace(setup, seeds=1, seed=setup.seed + seed))
            for number, (values, setup) in enumerate(setups)
            for seed in range(setup.seeds)
        )
    )
