"""The command that makes a run again, from its configuration."""

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from typing import Any

from ..errors import NatgfnError
from .config import put, setup_from
from .record import describe
from .setup import Setup


def command_of(configuration: Mapping[str, Any]) -> str:
    """`natgfn train key=value ...`; empty if a configuration says more than such settings can."""
    usual = {f.name: describe(f.default) for f in dataclasses.fields(Setup)}
    chosen = {name: value for name, value in configuration.items() if usual.get(name) != value}
    settings = [f"{name}={_toml(value)}" for name, value in chosen.items()]
    try:
        again = setup_from(put({}, settings)).configuration()
    except NatgfnError:  # an environment that is not natgfn's, or is made from arrays
        return ""
    return shlex.join(["natgfn", "train", *settings]) if again == configuration else ""


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        fields = {name: part for name, part in value.items() if part is not None}
        if fields.keys() == {"name"}:
            return _toml(fields["name"])
        inside = ", ".join(f"{name}={_toml(part)}" for name, part in fields.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return '"none"' if value is None else json.dumps(value)
