"""What a run was and how it went: versions, configuration, and a line of JSON an evaluation."""

import dataclasses
import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

from ..errors import NatgfnError

_PACKAGES = ("natgfn", "jax", "jaxlib", "equinox", "optax", "lineax", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Everything that a number may depend on."""
    found = {name: metadata.version(name) for name in _PACKAGES}
    return {**found, "python": platform.python_version(), "device": jax.devices()[0].platform}


def git_state() -> dict[str, Any] | None:
    """The commit of natgfn's own checkout and whether it was changed; None outside of one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


def describe(thing: Any) -> Any:
    """A configuration object as plain JSON: its class and its fields."""
    if isinstance(thing, eqx.Module):
        fields = {f.name: describe(getattr(thing, f.name)) for f in dataclasses.fields(thing)}
        return {"name": type(thing).__name__, **fields}
    if callable(thing):
        return getattr(thing, "__qualname__", repr(thing))
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    return repr(thing)


class Record:
    """A file of JSON lines: a header, then one line an evaluation."""

    def __init__(self, path: Path):
        self.path = path

    def start(self, configuration: Any) -> None:
        header = {"configuration": configuration, "versions": versions(), "git": git_state()}
        self._write([header], "w")

    def append(self, line: dict[str, Any]) -> None:
        self._write([line], "a")

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
        if not lines or "configuration" not in lines[0]:
            raise NatgfnError(f"{self.path} is not the record of a run")
        return lines[0], lines[1:]

    def rewind(self, step: int) -> list[dict[str, Any]]:
        """Drop what was written after the checkpoint of `step`; return what stays."""
        header, lines = self.read()
        lines = [line for line in lines if line["step"] <= step]
        self._write([header, *lines], "w")
        return lines

    def _write(self, lines: list[dict[str, Any]], mode: str) -> None:
        try:
            with self.path.open(mode) as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        except OSError as error:
            raise NatgfnError(f"cannot write the record {self.path}: {error.strerror}") from error
