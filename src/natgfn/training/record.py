"""What a run was and how it went: versions, configuration, and a line of JSON an evaluation."""

import dataclasses
import hashlib
import inspect
import json
import math
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..errors import NatgfnError
from ..statespace import StateSpace
from .files import write_whole

_PACKAGES = ("natgfn", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Everything that a number may depend on."""
    found = {name: _version(name) for name in _PACKAGES}
    return {**found, "python": platform.python_version(), "device": jax.devices()[0].platform}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"  # run from a source tree


def git_state() -> dict[str, Any] | None:
    """The commit of natgfn's own checkout and whether its code was changed; None outside of one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", ".")
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None


def describe(thing: Any) -> Any:
    """A configuration object as plain JSON: its class and what it was made from.

    An array is its hash, so that a record stays small (`store.Store` keeps the numbers); a function
    is its name and the values that it has closed over.
    """
    if isinstance(thing, StateSpace):
        return describe(thing.env)
    if isinstance(thing, eqx.Module):
        return {"name": type(thing).__name__, **{k: _field(k, thing) for k in made_from(thing)}}
    if isinstance(thing, np.ndarray | jax.Array):
        return {"array": digest(np.asarray(thing)), "shape": list(thing.shape)}
    if isinstance(thing, np.generic):
        return describe(thing.item())
    if isinstance(thing, float) and not math.isfinite(thing):
        return str(thing)
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, tuple):
        return [describe(part) for part in thing]
    if isinstance(thing, Path):
        return str(thing)
    if callable(thing):
        closed = inspect.getclosurevars(thing).nonlocals if inspect.isfunction(thing) else {}
        name = getattr(thing, "__qualname__", type(thing).__name__)
        return {"function": name, **{k: describe(v) for k, v in closed.items()}} if closed else name
    return repr(thing)


def made_from(thing: eqx.Module) -> list[str]:
    """The fields of a module that its constructor takes."""
    fields = {field.name for field in dataclasses.fields(thing)}
    return [name for name in inspect.signature(type(thing)).parameters if name in fields]


def digest(array: np.ndarray) -> str:
    """Sixteen hex digits that stand for the type, shape and numbers of an array."""
    header = f"{array.dtype.str} {array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def arrays_of(thing: Any) -> dict[str, np.ndarray]:
    """Every array that `describe` names, by its hash."""
    if isinstance(thing, StateSpace):
        return arrays_of(thing.env)
    if isinstance(thing, eqx.Module):
        parts = [arrays_of(getattr(thing, name)) for name in made_from(thing)]
        return {name: array for part in parts for name, array in part.items()}
    if isinstance(thing, tuple):
        return {name: array for part in thing for name, array in arrays_of(part).items()}
    if isinstance(thing, np.ndarray | jax.Array):
        return {digest(np.asarray(thing)): np.asarray(thing)}
    return {}


def _field(name: str, thing: eqx.Module) -> Any:
    # `Euclidean(1)` and `Euclidean(1.0)` are one configuration.
    value = getattr(thing, name)
    kind = next(field.type for field in dataclasses.fields(thing) if field.name == name)
    is_float = kind is float or float in get_args(kind)
    return float(value) if is_float and type(value) is int else describe(value)


def plain(value: Any) -> Any:
    """The same as JSON can hold it: infinities and NaN, which it cannot, become words."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def numbers(value: Any) -> Any:
    """What `plain` was made from."""
    if isinstance(value, dict):
        return {name: numbers(part) for name, part in value.items()}
    if isinstance(value, list):
        return [numbers(part) for part in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def by_name(lines: list[dict[str, Any]]) -> dict[str, Float[np.ndarray, "lines seeds"]]:
    """The lists in lines of a record, by name; NaN where a line has no such list."""
    flat = [{name: x for name, x in line.items() if isinstance(x, list)} for line in lines]
    lengths = {name: len(x) for line in flat for name, x in line.items()}
    return {
        name: np.array([line.get(name, [np.nan] * lengths[name]) for line in flat], float)
        for name in sorted(lengths)
    }


def unknown_in(lines: list[dict[str, Any]]) -> dict[str, int]:
    """How many numbers in lines of a record are NaN, by name; nothing of those that have none."""
    flat = [(name, x) for line in lines for name, x in line.items() if isinstance(x, list)]
    counts = Counter[str]()
    for name, values in flat:
        counts[name] += int(np.isnan(values).sum())
    return {name: count for name, count in counts.items() if count}


def _is_evaluation(line: Any) -> bool:
    """Whether a line has a step, a time, and lists of as many numbers as there are seeds."""
    if not isinstance(line, dict) or not isinstance(line.get("rejected"), list):
        return False
    if not isinstance(line.get("step"), int) or not isinstance(line.get("seconds"), int | float):
        return False
    inner = [part.values() for part in line.values() if isinstance(part, dict)]
    lists = [x for part in (line.values(), *inner) for x in part if isinstance(x, list)]
    seeds = len(line["rejected"])
    return all(len(x) == seeds and all(isinstance(n, int | float) for n in x) for x in lists)


class Record:
    """A file of JSON lines: a header, then one line an evaluation."""

    def __init__(self, path: Path):
        self.path = path

    def start(self, configuration: Any) -> None:
        self._replace([_header(configuration)])

    def prolong(self, configuration: Any, continues: list[str]) -> None:
        """Give the run another configuration, which goes on with checkpoints of earlier ones."""
        _, lines = self.read()
        self._replace([_header(configuration) | {"continues": continues}, *lines])

    def append(self, line: dict[str, Any]) -> None:
        # A record that has vanished is not begun again without its header.
        with _explained(self.path), self.path.open("r+") as file:
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(plain(line), allow_nan=False) + "\n")
            # On disk before the checkpoint that follows: a record may be ahead, never behind.
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The header and the evaluations. A last line that was cut off does not count."""
        lines = []
        try:
            for text in self.path.read_text().splitlines():
                lines.append(numbers(json.loads(text)))
        except (OSError, UnicodeDecodeError) as error:
            raise NatgfnError(f"cannot read the record {self.path}: {error}") from error
        except (ValueError, RecursionError):  # no JSON, or none that can be read
            pass
        if not lines or not isinstance(lines[0], dict) or "configuration" not in lines[0]:
            raise NatgfnError(f"{self.path} is not the record of a run")
        for number, line in enumerate(lines[1:], start=2):
            if not _is_evaluation(line):
                raise NatgfnError(f"line {number} of {self.path} is not an evaluation of a run")
        return lines[0], lines[1:]

    def rewind(self, step: int) -> list[dict[str, Any]]:
        """Drop what was written after the checkpoint of `step`; return what stays."""
        header, lines = self.read()
        lines = [line for line in lines if line["step"] <= step]
        if not lines or lines[-1]["step"] < step:
            last = lines[-1]["step"] if lines else "none"
            raise NatgfnError(
                f"the record {self.path} stops at step {last}, before its checkpoint of step "
                f"{step}: restore it, or delete both to start over"
            )
        self._replace([header, *lines])
        return lines

    def _replace(self, lines: list[dict[str, Any]]) -> None:
        """Write the whole file, or leave it as it was."""
        text = "".join(json.dumps(plain(line), allow_nan=False) + "\n" for line in lines)
        with _explained(self.path):
            write_whole(self.path, lambda file: file.write(text.encode()))


def _header(configuration: Any) -> dict[str, Any]:
    return {"configuration": configuration, "versions": versions(), "git": git_state()}


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NatgfnError(f"cannot write the record {path}: {error.strerror}") from error
