"""Input that a generator made up: one line or a result, never a traceback, a hang or a NaN."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from natgfn import NatgfnError, dag, envs, graphical
from natgfn.check import check_environment
from natgfn.cli.commands import _is_ours
from natgfn.sweeps import study_from
from natgfn.training import catalogue, decide, fields, read_settings, setup_from

from .campaign import attack

SECONDS = 60

NUMBERS = [0, 1, 2, 3, 7, 100, -1, 10**6, 10**9, 10**12, 10**18, 10**30, 0.5, 1.5, 1e-9, 1e9, 1e30]
WORDS = [
    "nan",
    "inf",
    "-inf",
    "none",
    "true",
    "[]",
    "{}",
    "[1, 2]",
    '""',
    '"x"',
    "=1+1",
    "a,b",
    "\u00e9",
]
STRANGE = [
    "9" * 5_000,
    "[" * 3_000,
    "{" * 3_000,
    '"' + "x" * 10_000,
    "1e999",
    "0x10",
    "\x00",
    "..",
    "$$",
]


@contextmanager
def refused_or_fine() -> Iterator[None]:
    """No error but one that a person can act on, in one line; and no hang."""

    def too_long(*_: Any) -> None:
        raise AssertionError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        yield
    except NatgfnError as error:
        assert "\n" not in str(error), error
    except ValueError as error:
        assert _is_ours(error), repr(error)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _value(rng: np.random.Generator, choices: list[str]) -> str:
    draw = rng.random()
    if choices and draw < 0.5:
        return str(rng.choice(choices))
    if draw < 0.75:
        return str(NUMBERS[int(rng.integers(len(NUMBERS)))])
    if draw < 0.95:
        return str(rng.choice(WORDS))
    return STRANGE[int(rng.integers(len(STRANGE)))]


def _settings(rng: np.random.Generator) -> list[str]:
    """Random settings: known fields with strange values, and unknown fields."""
    known = dict(catalogue())
    env = str(rng.choice(["hypergrid", "hypergrid", "deceptivegrid", "triangles", "bitsequences"]))
    found = [f"env={env}", "max_states=500", "batch=4"]
    for _ in range(int(rng.integers(1, 5))):
        place = str(rng.choice(list(known)))
        draw = rng.random()
        if draw < 0.4:
            name = str(rng.choice(list(known[place])))
            found.append(f"{place}={name}")
            inner = [f for f in fields(known[place][name]) if f != "name"]
            if inner:
                field = str(rng.choice(inner))
                found.append(f"{place}.{field}={_value(rng, [])}")
        elif draw < 0.8:
            name = str(
                rng.choice([*["batch", "updates", "seeds", "seed", "log_z", "max_states"], place])
            )
            found.append(f"{name}={_value(rng, list(known.get(name, {})))}")
        else:
            found.append(f"{rng.choice(WORDS)}={_value(rng, [])}")
    return found


@attack("fuzz: configurations", 1_000)
def configurations(rng: np.random.Generator, folder: Path) -> None:
    settings = _settings(rng)
    (folder / "settings.json").write_text(json.dumps(settings))
    with refused_or_fine():
        setup = setup_from(read_settings(None, settings))
        if rng.random() < 0.2:
            decide(setup)


@attack("fuzz: files of configurations and sweeps", 200)
def files(rng: np.random.Generator, folder: Path) -> None:
    lines = [text.partition("=") for text in _settings(rng)]
    text = "\n".join(f"{key} = {value}" for key, _, value in lines)
    if rng.random() < 0.5:
        values = _value(rng, ["[4, 8]", '"log(1, 8, 4)"', '"range(1, 8, 2)"'])
        text += f"\n[sweep]\nbatch = {values}"
    found = bytearray(text.encode())
    if len(found) and rng.random() < 0.5:
        found[int(rng.integers(len(found)))] = int(rng.integers(256))
    path = folder / "study.toml"
    path.write_bytes(found)
    with refused_or_fine():
        study_from(path, ["env=hypergrid"] if rng.random() < 0.5 else [])


@attack("fuzz: CSV files", 500)
def tables(rng: np.random.Generator, folder: Path) -> None:
    rows, columns = int(rng.integers(0, 12)), int(rng.integers(1, 5))
    scale = 10.0 ** rng.choice([-310, -300, -150, -9, 0, 0, 0, 9, 150, 300, 307.9])
    odd = [
        "",
        "na",
        "inf",
        "-1e308",
        "1e308",
        "1e-320",
        "x",
        "=1+1",
        '"',
        "1,2",
        "\u00e9",
        "1e999",
        "0",
    ]
    with np.errstate(over="ignore"):
        values = scale * rng.normal(size=(rows, columns))
    cells = [[f"{x:.17g}" for x in row] for row in values]
    for _ in range(int(rng.integers(0, 3))):
        if rows:
            place = int(rng.integers(rows)), int(rng.integers(columns))
            cells[place[0]][place[1]] = str(rng.choice(odd))
    names = [
        str(rng.choice(["a", "b", "c", "d", "$$", "=x", "1", ""])) + str(i) * bool(rng.integers(4))
        for i in range(columns)
    ]
    path = folder / "data.csv"
    found = bytearray("\n".join([",".join(names), *(",".join(row) for row in cells)]).encode())
    if len(found) and rng.random() < 0.2:
        found[int(rng.integers(len(found)))] = int(rng.integers(256))
    path.write_bytes(found)
    with refused_or_fine(), np.errstate(all="ignore"):
        data = dag.load(
            path, discrete=bool(rng.random() < 0.2), standardise=bool(rng.random() < 0.8)
        )
        temperature = float(rng.choice([1.0, 1e-300, 1e6, 1e308]))
        posterior = dag.exact_posterior(data, temperature=temperature)
        marginals = posterior.edge_marginals.to_numpy()
        assert np.isfinite(posterior.log_z)
        assert np.all((marginals > -1e-9) & (marginals < 1 + 1e-9)), marginals
        posterior.sample(10)


UAI = "MARKOV\n3\n2 3 2\n2\n2 0 1\n2 1 2\n6\n1 2 3 4 5 6\n6\n.1 .2 .3 .4 .5 .6\n"


@attack("fuzz: UAI files", 300)
def models(rng: np.random.Generator, folder: Path) -> None:
    words = UAI.split(" ") if rng.random() < 0.5 else UAI.split()
    for _ in range(int(rng.integers(1, 4))):
        place, draw = int(rng.integers(len(words))), rng.random()
        if draw < 0.3:
            del words[place]
        elif draw < 0.7:
            words[place] = _value(rng, ["MARKOV", "BAYES", "0", "-1", "1e308", "99999999999"])
        else:
            words.insert(place, _value(rng, []))
    path = folder / "model.uai"
    path.write_text(" ".join(words))
    with refused_or_fine():
        graph = graphical.read_uai(path)
        assert not np.isnan(graphical.log_partition(graph))


def _broken(rng: np.random.Generator) -> envs.AbstractEnv:
    """A grid with one method that does not keep its promise in some cells."""
    where, much = int(rng.integers(1, 4)), float(rng.choice([np.nan, np.inf, -np.inf, 1e30]))
    kinds = [
        "reward", "noise", "undo", "step", "backward", "forward", "terminal", "observe", "steps",
        "actions", "init", "float state", "raise", "endless", "noise in step",
    ]  # fmt: skip
    kind = kinds[int(rng.integers(len(kinds)))]

    class Broken(envs.Hypergrid):
        def _here(self, state: Any) -> Any:
            return jnp.sum(state.cell) == where

        def log_reward(self, state: Any) -> Any:
            if kind == "raise":
                raise KeyError("made to fail")
            noise = float(np.random.default_rng().uniform()) if kind == "noise" else 0.0
            changed = much if kind == "reward" else 0.0
            return super().log_reward(state) + jnp.where(self._here(state), changed, noise)

        def observe(self, state: Any) -> Any:
            bad = (kind == "observe") & self._here(state)
            return jnp.where(bad, jnp.nan, super().observe(state))

        def undo(self, state: Any, action: Any) -> Any:
            found = super().undo(state, action)
            return found._replace(cell=found.cell + ((kind == "undo") & self._here(state)))

        def step(self, state: Any, action: Any) -> Any:
            found = super().step(state, action)
            more = (kind == "step") & self._here(state)
            if kind == "noise in step":
                more = np.random.default_rng().integers(4, size=2) * self._here(state)
            if kind == "endless":
                return found._replace(cell=state.cell, stopped=jnp.array(False))
            return found._replace(cell=jnp.minimum(found.cell + more, self.side - 1))

        def forward_mask(self, state: Any) -> Any:
            return super().forward_mask(state) & ~((kind == "forward") & self._here(state))

        def backward_mask(self, state: Any) -> Any:
            return super().backward_mask(state) | ((kind == "backward") & self._here(state))

        def is_terminal(self, state: Any) -> Any:
            return super().is_terminal(state) & ~((kind == "terminal") & self._here(state))

        def init(self) -> Any:
            found = super().init()
            if kind == "float state":
                return found._replace(cell=found.cell.astype(float))
            return found._replace(stopped=jnp.array(kind == "init"))

        @property
        def max_steps(self) -> Any:
            return {"steps": 2}.get(kind, super().max_steps)

        @property
        def num_actions(self) -> Any:
            return {"actions": float(super().num_actions)}.get(kind, super().num_actions)

    Broken.__name__ = f"Broken by {kind}"
    return Broken(side=4)


@attack("fuzz: broken environments", 50)
def environments(rng: np.random.Generator, folder: Path) -> None:
    env = _broken(rng)
    (folder / "kind.txt").write_text(type(env).__name__)
    with refused_or_fine():
        findings = check_environment(env, max_states=2**18 if rng.random() < 0.5 else 6)
        assert any(finding.ok is False for finding in findings), type(env).__name__
