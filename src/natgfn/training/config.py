"""The configuration of a run: plain data from a file, the command line or a record.

A configuration mirrors `Setup`: a key for each of its fields, and for a field that is an object, a
table with the `name` of its class and its fields,

    updates = 500
    watch = ["exact", {name = "certificate", every = 100}]
    [env]
    name = "Hypergrid"
    side = 16
    [rule]
    name = "Natural"
    occupancy = "Sampled"      # short for a table with only a name

which is also how a record describes its run. There is no list of what may be named: types
and defaults are read from signatures, and classes are what natgfn's packages export. So a new
environment or solver is configurable as soon as it is exported.
"""

import collections.abc
import difflib
import importlib
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeGuard, Union, get_args, get_origin

import equinox as eqx
import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError

from ..errors import MissingExtra, NatgfnError
from .setup import Setup
from .store import arrays_in, read_header


def load_setup(folder: Path) -> Setup:
    """What a run was trained with, from its record."""
    configuration = read_header(folder)["configuration"]
    try:
        return setup_from(_with_arrays(configuration, arrays_in(folder)))
    except NatgfnError as error:
        raise NatgfnError(
            f"{folder} cannot be made again from its record ({error}); if its environment is your "
            "own, go on from Python: natgfn.train(env, ..., out=..., resume=True)"
        ) from error


def _with_arrays(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """A configuration with arrays in place of their hashes."""
    if isinstance(value, list):
        return [_with_arrays(part, arrays) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"array", "shape"}:
        if value["array"] not in arrays:
            raise NatgfnError(f"the array {value['array']} is missing")
        return arrays[value["array"]]
    return {name: _with_arrays(part, arrays) for name, part in value.items()}


def read_settings(path: Path | None, settings: Sequence[str] = ()) -> dict[str, Any]:
    """Read a TOML file, if there is one, and apply `key=value` settings."""
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise NatgfnError(f"{path} is not valid TOML: {error}") from error
        except (ValueError, RecursionError) as error:
            raise NatgfnError(f"{path} cannot be read: {_why(error)}") from error
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
    except (ValueError, RecursionError) as error:
        raise NatgfnError(f"{text[:40]}... is not a value: {_why(error)}") from error


def _why(error: Exception) -> str:
    """Why TOML that may be valid cannot be read."""
    return "too deep" if isinstance(error, RecursionError) else "a number with too many digits"


def setup_from(configuration: Mapping[str, Any]) -> Setup:
    """A setup made from plain data."""
    values = _arguments(Setup, configuration, "")
    try:
        return Setup(**values)
    except ValueError as error:
        raise NatgfnError(str(error)) from error


def named(field: str, text: str) -> Any:
    """One field of a setup from text: a name, or a TOML table."""
    return _value(Setup, field, _toml(text), "")


def construct(make: Callable[..., Any], table: Mapping[str, Any], where: str = "") -> Any:
    """Call a class with fields from plain data; `where` is the dotted name of the place."""
    values = _arguments(make, table, where)
    try:
        return make(**values)
    except ValueError as error:
        raise NatgfnError(f"{where or make.__name__}: {error}") from error


def options(owner: Callable[..., Any], field: str) -> dict[str, Callable[..., Any]]:
    """What a field of a class may name; nothing if it is a value.

    A field typed as a class takes its concrete subclasses, one typed as a tuple of them takes a
    list; and one typed as a function takes what its default is a case of (`Squared`, so any
    penalty).
    """
    parameter = fields(owner)[field]
    kind = _kind(parameter.annotation)
    if kind is None and get_origin(parameter.annotation) is collections.abc.Callable:
        kind = type(parameter.default).__base__
    if not _is_module(kind):
        return {}
    return {**_exports(kind)}


def fields(make: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What can be set of a class."""
    return dict(inspect.signature(make, eval_str=True).parameters)


def catalogue(make: Callable[..., Any] = Setup, at: str = "") -> Iterator[tuple[str, dict]]:
    """Every place in a configuration that takes a name, with what may be named there."""
    for field in fields(make):
        where, found = f"{at}{field}", options(make, field)
        if found:
            yield where, found
        inner: dict[str, dict] = {}
        for choice in found.values():
            if choice is not make:  # a part may hold one of its kind
                inner |= dict(catalogue(choice, f"{where}."))
        yield from inner.items()


def _exports(kind: type) -> dict[str, type[eqx.Module]]:
    """The concrete cases of a class that its package makes public, and those of `natgfn.dag`."""
    package = kind.__module__.rpartition(".")[0]
    found = {}
    for name in (package, "natgfn.dag"):
        with suppress(MissingExtra):  # natgfn.dag needs pandas
            for public, cls in vars(importlib.import_module(name)).items():
                if _is_module(cls) and issubclass(cls, kind) and not inspect.isabstract(cls):
                    found[public] = cls
    return found


def _kind(annotation: Any) -> type[eqx.Module] | None:
    """The class that an annotation allows, alone, or beside None or numbers, or in a tuple."""
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, UnionType):
        return next((kind for part in get_args(annotation) if (kind := _kind(part))), None)
    return annotation if _is_module(annotation) else None


def _is_module(kind: Any) -> TypeGuard[type[eqx.Module]]:
    return isinstance(kind, type) and issubclass(kind, eqx.Module)


def _arguments(make: Callable[..., Any], table: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = fields(make)
    owner = f"{where}: {make.__name__}" if where or make is not Setup else "a run"
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
    annotation = parameter.annotation
    if isinstance(value, np.ndarray | eqx.Module):
        return value
    if NoneType in get_args(annotation) and (value is None or value == "none"):
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    takes_numbers = float in get_args(annotation)
    if not choices or (is_number and takes_numbers):
        return _scalar(float if choices else annotation, value, where)
    if takes_numbers and isinstance(value, str) and _plain(value) not in map(_plain, choices):
        raise NatgfnError(
            f"{where}: expected a number or one of {', '.join(choices)}, got {value!r}"
        )
    if _takes_several(annotation):
        several = value if isinstance(value, list) else [value]
        return tuple(_object(part, choices, None, where) for part in several)
    return _object(value, choices, parameter.default, where)


def _takes_several(annotation: Any) -> bool:
    return any(get_origin(part) is tuple for part in (annotation, *get_args(annotation)))


def _object(value: Any, choices: dict[str, Callable], default: Any, where: str) -> Any:
    """An object from its name, or from a table with its name and its fields."""
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        raise NatgfnError(f"{where}: expected one of {', '.join(choices)}, got {value!r}")
    rest = {key: inner for key, inner in table.items() if key != "name"}
    if "name" in table:
        return construct(_named(choices, table["name"], where), rest, where)
    return construct(_default(default, choices, where), rest, where)


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
        if isinstance(value, float) and not math.isfinite(value):
            return TypeAdapter(annotation).validate_python(value)  # which JSON cannot hold
        return TypeAdapter(annotation).validate_json(json.dumps(value, default=str), strict=True)
    except PydanticSchemaGenerationError as error:
        raise NatgfnError(
            f"{where}: only Python and the record of a run can give it, got {value!r}"
        ) from error
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        expected = message[:1].lower() + message[1:]
        raise NatgfnError(f"{where}: {expected}, got {value!r}") from error


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _instead(given: str, known: Mapping[str, Any]) -> str:
    """The closest name, and all there are."""
    by_plain = {_plain(name): name for name in known}
    close = difflib.get_close_matches(_plain(given), list(by_plain), n=1)
    hint = f": did you mean {by_plain[close[0]]}? Expected" if close else ": expected"
    return f"{hint} one of {', '.join(known)}" if known else ": it has none"
