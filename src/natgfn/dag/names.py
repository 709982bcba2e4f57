"""Names of variables."""

from difflib import get_close_matches


def unknown(name: str, names: tuple[str, ...]) -> str:
    """What to say of a name that no variable has."""
    close = get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(names)}"
    return f"no variable {name!r}; {hint}"
