"""What commands that start from a file have in common."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import NatgfnError


def takes(kind: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a class as options, in place of its first argument."""
    shared = inspect.signature(kind).parameters

    def options_of(command: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(command).parameters.values()
        parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*shared.values(), *own)]

        def called(**values: Any) -> None:
            case = kind(**{name: values.pop(name) for name in shared})
            command(case, **values)

        called.__name__, called.__doc__ = command.__name__, command.__doc__
        called.__annotations__ = {p.name: p.annotation for p in parameters}
        called.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return called

    return options_of


def remember(path: Path, told: dict[str, Any]) -> None:
    """Write down what to do, before it is done: a name that cannot be used is known at once."""
    from ..training import CHECKPOINT

    out = path.parent
    if (out / CHECKPOINT).exists():
        raise NatgfnError(
            f"{out} already holds a fit: go on with natgfn resume {out}, or choose another folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(told, indent=2) + "\n")
