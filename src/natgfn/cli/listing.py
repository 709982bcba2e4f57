"""`natgfn list`: everything that can be configured, and every experiment and benchmark."""

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import NatgfnError
from .checkout import from_checkout

WIDTH = 80
"""Columns of a line, at most, unless a name alone is longer."""

IN_CHECKOUT = {
    "experiments": ("reproduce", "paper", "EXPERIMENTS"),
    "benchmarks": ("bench", "benchmarks", "BENCHMARKS"),
}
"""What a checkout has: the command that takes it, and where it is."""

_SPELLED = {
    r"\,": " ", r"\dots": "...", r"\pm": "+-", r"\propto": "~", r"\mid": "|", r"\le": "<=",
    r"\varepsilon": "epsilon", r"\sqrt": "sqrt ", r"\top": "T", r"\mathrm": "", r"\text": "",
    r"\bigl": "", r"\bigr": "", r"\widetilde": "",
}  # fmt: skip
"""What a terminal shows in place of a command of LaTeX; of any other, its name."""


class Group(NamedTuple):
    """What one setting, or one command, takes.

    Attributes:
        names: by which it may be asked for.
        usage: how one of its entries is chosen.
        entries: by name.
    """

    names: tuple[str, ...]
    usage: str
    entries: dict[str, Any]


def groups() -> list[Group]:
    """All there is, each kind once although several settings may take it."""
    from ..training import catalogue

    places: dict[tuple[str, ...], list[str]] = {}
    kinds: dict[tuple[str, ...], dict[str, Any]] = {}
    for where, entries in catalogue():
        key = tuple(sorted(entries))
        kinds.setdefault(key, entries)
        places.setdefault(key, []).append(where)
    found = []
    for key, settings in places.items():
        last = [where.rpartition(".")[2] for where in settings]
        names = dict.fromkeys(form for name in (*last, *settings) for form in _forms(name))
        shown = ", ".join(f"{where}=" for where in settings[:3])
        usage = shown + (f" and {len(settings) - 3} more" if len(settings) > 3 else "")
        found.append(Group(tuple(names), usage, kinds[key]))
    for name, (command, package, entries) in IN_CHECKOUT.items():
        try:
            known = getattr(from_checkout(package, command), entries)
        except NatgfnError:
            continue
        found.append(Group((name, name[:-1], command), f"natgfn {command} NAME", known))
    return found


def _forms(name: str) -> tuple[str, ...]:
    """A name and its plural."""
    plural = f"{name[:-1]}ies" if name.endswith(("cy", "ty")) else f"{name}s"
    return name, plural


def lines(group: str | None) -> Iterator[str]:
    """Every group in short, or one with all its options.

    Raises:
        NatgfnError: there is no such group.
    """
    known = groups()
    if group is None:
        for one in known:
            yield from (one.usage, *_entries(one, False), "")
        yield "natgfn list GROUP has the options of each, for example natgfn list envs"
        return
    chosen = [one for one in known if group.lower() in one.names]
    if not chosen:
        names = ", ".join(dict.fromkeys(one.names[0] for one in known))
        raise NatgfnError(f"there is no group {group!r}: expected one of {names}")
    for one in chosen:
        yield from (one.usage, *_entries(one, True), "")


def _entries(group: Group, detailed: bool) -> Iterator[str]:
    """Names with what they are, and with their options below, in columns."""
    from ..training import fields

    indent = min(24, max(map(len, group.entries)) + 4)
    for name, make in group.entries.items():
        head = f"  {name}".ljust(indent)
        head = head if len(head) == indent else f"{head}\n{' ' * indent}"
        body = textwrap.wrap(_summary(make), WIDTH - indent) or [""]
        yield (head + f"\n{' ' * indent}".join(body)).rstrip()
        if detailed and inspect.isclass(make):
            options = "  ".join(map(_option, fields(make).values()))
            yield from textwrap.wrap(
                options, WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent,
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip


def _option(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    return str(parameter.replace(annotation=parameter.empty)).replace(" ", "")


def _summary(thing: Any) -> str:
    """The first sentence of a docstring, with formulas as a terminal can show them."""
    paragraph = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    text = re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]
    text = re.sub(r" \(`\w+:\w+`\)", "", text)  # labels of the paper
    text = re.sub(r"\\(,|[a-zA-Z]+)", lambda found: _SPELLED.get(found[0], found[1]), text)
    return " ".join(re.sub(r"[$\\{}`]", "", text).split())
