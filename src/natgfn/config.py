"""The configuration of a run: plain data from a file, the command line or a record.

A configuration mirrors `natgfn.train`: a key for each of its arguments, and for an argument
that is an object, a table with the `name` of its class and its fields,

    updates = 500
    [env]
    name = "Hypergrid"
    side = 16
    [rule]
    name = "Natural"
    occupancy = "Sampled"      # short for a table with only a name

which is also how a record describes its run. There is no list of what may be named: types
and defaults are read from signatures, and classes are what the package of a field's type
exports. So a new environment or solver is configurable as soon as it is exported.
"""

import collections.abc
import difflib
import inspect
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeGuard, Union, get_args, get_origin

import equinox as eqx
from pydantic import TypeAdapter, ValidationError

from .errors import NatgfnError
from .train import train

_NOT_SETTINGS = ("out", "resume", "progress")


def load(path: Path | None, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Read a TOML file, if there is one, and apply `key=value` settings."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise NatgfnError(f"{path} is not valid TOML: {error}") from error
        except OSError as error:
            raise NatgfnError(
                f"cannot read the configuration {path}: {error.strerror}; expected a TOML file"
            ) from error
    return put(table, settings)


def put(table: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """A copy of `table` with `key=value` settings; keys may be dotted.

    Values are TOML, or else plain strings. An object given by name starts from its defaults,
    whatever the order of the settings: `rule.damping=0.1 rule=natural` sets both.
    """
    result: dict[str, Any] = deepcopy(dict(table))
    settings = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not all(key.split(".")):
            raise NatgfnError(f"expected key=value, for example env.side=16, got {text!r}")
        settings.append((key.split("."), _toml(value)))
    for (*tables, last), value in sorted(settings, key=lambda setting: len(setting[0])):
        node: dict[str, Any] = result
        for depth, part in enumerate(tables):
            inner = node.setdefault(part, {})
            if isinstance(inner, str):
                inner = node[part] = {"name": inner}
            if not isinstance(inner, dict):
                where = ".".join(tables[: depth + 1])
                raise NatgfnError(f"{where} is {inner!r}: it has no field {last!r} to set")
            node = inner
        node[last] = value
    return result


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def arguments(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `natgfn.train`, made from plain data."""
    return _arguments(train, configuration, "")


def construct(make: Callable[..., Any], table: Mapping[str, Any], where: str = "") -> Any:
    """Call a class with fields from plain data; `where` is the dotted name of the place."""
    values = _arguments(make, table, where)
    try:
        return make(**values)
    except ValueError as error:
        raise NatgfnError(f"{where or make.__name__}: {error}") from error


def options(owner: Callable[..., Any], field: str) -> dict[str, Callable[..., Any]]:
    """What a field of a class, or argument of a function, may name; nothing if it is a value.

    A field typed as a class takes its concrete subclasses; one typed as a function that makes
    a class takes constructors of the field's name (`Uniform.backward`); and one typed as any
    other function takes what its default is a case of (`Squared`, so any penalty).
    """
    parameter = fields(owner)[field]
    kind = _without_none(parameter.annotation)
    if get_origin(kind) is collections.abc.Callable:
        made = get_args(kind)[-1]
        if _is_module(made):
            found = {name: getattr(cls, field, None) for name, cls in _exports(made).items()}
            return {name: make for name, make in found.items() if make is not None}
        kind = type(parameter.default).__base__
    if not _is_module(kind):
        return {}
    return {
        name: cls
        for name, cls in _exports(kind).items()
        if issubclass(cls, kind) and not inspect.isabstract(cls)
    }


def fields(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What can be set of a class, or of `natgfn.train`."""
    parameters = inspect.signature(make, eval_str=True).parameters
    return {name: p for name, p in parameters.items() if name not in _NOT_SETTINGS}


def catalogue(make: Callable[..., Any] = train, at: str = "") -> Iterator[tuple[str, dict]]:
    """Every place in a configuration that takes a name, with what may be named there."""
    for field in fields(make):
        where, found = f"{at}{field}", options(make, field)
        if found:
            yield where, found
        inner: dict[str, dict] = {}
        for choice in found.values():
            if inspect.isclass(choice) and choice is not make:  # a part may hold one of its kind
                inner |= dict(catalogue(choice, f"{where}."))
        yield from inner.items()


def _exports(thing: Any) -> dict[str, type]:
    """The modules, in equinox' sense, that the package of a class makes public."""
    package = sys.modules.get(thing.__module__.rpartition(".")[0]) or sys.modules[thing.__module__]
    return {
        name: cls
        for name, cls in vars(package).items()
        if _is_module(cls) and not name.startswith("_")
    }


def _is_module(kind: Any) -> TypeGuard[type[eqx.Module]]:
    return isinstance(kind, type) and issubclass(kind, eqx.Module)


def _arguments(make: Callable[..., Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = fields(make)
    owner = f"{where}: {make.__name__}" if where or make is not train else "a run"
    for key in table:
        if key not in known:
            raise NatgfnError(f"{owner} has no setting {key!r}{_instead(key, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in table:
            place = f"{where}.{name}" if where else name
            choices = options(make, name)
            example = next(iter(choices), "...")
            one_of = f", one of {', '.join(choices)}" if choices else ""
            raise NatgfnError(f"{owner} needs {name}{one_of}: set it with {place}={example}")
    return {key: _value(make, key, value, where) for key, value in table.items()}


def _value(make: Callable[..., Any], field: str, value: Any, where: str) -> Any:
    """One setting, made from plain data."""
    where = f"{where}.{field}" if where else field
    parameter, choices = fields(make)[field], options(make, field)
    optional = NoneType in get_args(parameter.annotation)
    if optional and (value is None or value == "none"):
        return None
    if not choices:
        return _scalar(parameter.annotation, value, where)
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise NatgfnError(f"{where}: expected one of {', '.join(choices)}, got {value!r}")
    rest = {key: inner for key, inner in table.items() if key != "name"}
    choice = _named(choices, table["name"], where) if "name" in table else None
    if choice is None:
        choice = _default(parameter.default, choices, where)
    if inspect.isclass(choice):
        return construct(choice, rest, where)
    if rest:
        raise NatgfnError(f"{where}: takes only a name, got also {', '.join(rest)}")
    return choice


def _named(choices: dict[str, Callable], name: Any, where: str) -> Callable[..., Any]:
    by_name = {_plain(known): choice for known, choice in choices.items()}
    if _plain(str(name)) not in by_name:
        raise NatgfnError(f"{where}: there is no {name!r}{_instead(str(name), choices)}")
    return by_name[_plain(str(name))]


def _default(default: Any, choices: dict[str, Callable], where: str) -> Callable[..., Any]:
    """The class whose fields are meant when a table has no name."""
    if isinstance(default, eqx.Module):
        return type(default)
    if len(choices) == 1:
        return next(iter(choices.values()))
    raise NatgfnError(f"{where}: which one? Set {where}.name to one of {', '.join(choices)}")


def _scalar(annotation: Any, value: Any, where: str) -> Any:
    try:
        # JSON rules: no coercion, except an integer for a number and a list for a tuple.
        return TypeAdapter(annotation).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        expected = message[:1].lower() + message[1:]
        raise NatgfnError(f"{where}: {expected}, got {value!r}") from error


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return kinds[0] if len(kinds) == 1 else annotation


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _instead(given: str, known: Mapping[str, Any]) -> str:
    """The closest name, and all there are."""
    by_plain = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(given), list(by_plain), n=1)
    hint = f": did you mean {by_plain[close[0]]}? Expected" if close else ": expected"
    return f"{hint} one of {', '.join(known)}" if known else ": it has none"
