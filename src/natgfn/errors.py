"""Errors that a person can act on."""

import operator
from typing import Any


class NatgfnError(Exception):
    """Bad input or an unusable file: one line that says what was given and what to do.

    The command line prints it without a traceback and exits with code 2.
    """


class MissingExtra(NatgfnError):
    """A library that an extra of natgfn brings is not installed."""

    def __init__(self, error: ModuleNotFoundError, extra: str):
        library = (error.name or "a library").partition(".")[0]
        super().__init__(f"{library} is not installed: pip install 'natgfn[{extra}]'")


def require_whole(name: str, value: Any, least: int, most: int = 2**31 - 1) -> None:
    """A ValueError of one line, unless `value` is a whole number of any kind, within bounds.

    JAX counts in 32 bits, so nothing that is counted is larger than that unless it is said.
    """
    try:
        operator.index(value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, got {value!r}") from None
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    if value > most:
        given = f"{value:,}" if value < 10**18 else "a larger number"
        raise ValueError(f"{name} must be at most {most:,}, got {given}")
