"""What commands that start from a file have in common."""

import dataclasses
import inspect
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import NatgfnError

DAG_FIT, GRAPHICAL_FIT = "fit.json", "graphical.json"
"""In the folder of a fit: how it was asked for."""


def is_fit(folder: Path) -> bool:
    """Whether `natgfn dag fit` or `natgfn graphical fit` made a folder."""
    return any((folder / name).exists() for name in (DAG_FIT, GRAPHICAL_FIT))


def takes(*kinds: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of classes as options, in place of its first arguments."""
    shared = {kind: inspect.signature(kind).parameters for kind in kinds}

    def options_of(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command).parameters.values())[len(kinds) :]
        fields = [parameter for names in shared.values() for parameter in names.values()]
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*fields, *own)]

        def called(**values: Any) -> None:
            made = [kind(**{n: values.pop(n) for n in names}) for kind, names in shared.items()]
            command(*made, **values)

        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return called

    return options_of


def spelled(command: str, case: Any, own: dict[str, Any]) -> str:
    """The command that has a case and further options, as a person would type it."""
    words = ["natgfn", *command.split()]
    for field in dataclasses.fields(case):
        value = getattr(case, field.name)
        if field.default is dataclasses.MISSING:
            words.append(str(value))
        elif value != field.default:
            words += _option(field.name, value)
    for name, value in own.items():
        words += _option(name, value)
    return shlex.join(words)


def _option(name: str, value: Any) -> list[str]:
    name = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    values = value if isinstance(value, list) else [] if value is None else [value]
    return [word for one in values for word in (f"--{name}", str(one))]


def remember(path: Path, told: dict[str, Any], *, again: bool = False) -> None:
    """Write down what to do, before it is done: a name that cannot be used is known at once.

    What has been begun is not to be done anew, unless it is done `again`, for longer.
    """
    from ..training import RECORD, has_checkpoint, locked

    out, text = path.parent, json.dumps(told, indent=2) + "\n"
    with locked(out):
        begun = (out / RECORD).exists() and path.exists() and path.read_text() != text
        if not again and (begun or has_checkpoint(out)):
            raise NatgfnError(
                f"{out} already holds a fit: go on with natgfn resume {out}, or choose another "
                "folder"
            )
        path.write_text(text)
