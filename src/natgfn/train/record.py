"""What a run was and how it went: versions, configuration, and a line of JSON an evaluation."""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import equinox as eqx
import jax

from ..errors import NatgfnError

_PACKAGES = ("natgfn", "jax", "jaxlib", "equinox", "optax", "lineax", "numpy", "scipy")


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
    """A configuration object as plain JSON: its class and its fields."""
    if isinstance(thing, eqx.Module):
        fields = {f.name: _field(f, getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"name": type(thing).__name__, **fields}
    if callable(thing):
        return getattr(thing, "__qualname__", repr(thing))
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, tuple):
        return [describe(part) for part in thing]
    return repr(thing)


def _field(field: dataclasses.Field, value: Any) -> Any:
    # `Euclidean(1)` and `Euclidean(1.0)` are one configuration.
    is_float = field.type is float or float in get_args(field.type)
    return float(value) if is_float and type(value) is int else describe(value)


class Record:
    """A file of JSON lines: a header, then one line an evaluation."""

    def __init__(self, path: Path):
        self.path = path

    def start(self, configuration: Any) -> None:
        self._replace(
            [{"configuration": configuration, "versions": versions(), "git": git_state()}]
        )

    def append(self, line: dict[str, Any]) -> None:
        with _explained(self.path), self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")
            # On disk before the checkpoint that follows: a record may be ahead, never behind.
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The header and the evaluations. A last line that was cut off does not count."""
        lines = []
        try:
            for text in self.path.read_text().splitlines():
                lines.append(json.loads(text))
        except json.JSONDecodeError:
            pass
        except (OSError, UnicodeDecodeError) as error:
            raise NatgfnError(f"cannot read the record {self.path}: {error}") from error
        if not lines or not isinstance(lines[0], dict) or "configuration" not in lines[0]:
            raise NatgfnError(f"{self.path} is not the record of a run")
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
        partial = self.path.with_name(self.path.name + ".partial")
        with _explained(self.path):
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines))
            partial.replace(self.path)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NatgfnError(f"cannot write the record {path}: {error.strerror}") from error
