"""Starting up: what is loaded before it is needed, and programs kept between processes."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import natgfn
from natgfn.cache import chosen_folder, shrink
from natgfn.cli import app
from natgfn.cli.demo import run_demo
from natgfn.statespace import enumerate as enumeration

walk = enumeration._walk
HEAVY = {"jax", "equinox", "numpy", "scipy", "pandas", "networkx", "matplotlib", "optax"}

COMPILE = """
import jax, jax.numpy as jnp
import natgfn.envs
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name.endswith("cache_hits")))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
print(jax.jit(lambda x: jnp.sin(x) * 2)(1.0), sum(hits))
"""
"""Prints a number, and how many programs of an earlier process it took to get it."""


def python(code: str, **variables: str) -> str:
    """What a fresh interpreter prints, which is not to say anything else."""
    chosen = ("JAX_", "NATGFN_CACHE", "XDG_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(chosen)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def programs(folder: Path) -> list[Path]:
    return list(folder.rglob("*-cache"))


def commands() -> list[list[str]]:
    """Every command and group, by the words that name it."""
    groups = [([], app), *(([g.name], g.typer_instance) for g in app.registered_groups)]
    return [
        *(words for words, _ in groups),
        *(
            [*words, command.name or command.callback.__name__]
            for words, group in groups
            for command in group.registered_commands
        ),
    ]


def test_help_and_version_load_nothing_that_takes_long():
    asked = [[*words, "--help"] for words in commands()] + [["--version"]]
    assert ["graphical", "fit", "--help"] in asked
    loaded = python(f"""
import contextlib, io, sys
from natgfn.cli import app
for words in {asked!r}:
    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
        app(words)
    assert said.getvalue(), words
print(*{{name.partition(".")[0] for name in sys.modules}})
""")
    assert "natgfn" in loaded.split()
    assert not HEAVY & set(loaded.split())


@pytest.mark.slow
def test_no_command_lists_states_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    listed = []

    def spy(env, max_states):
        listed.append(type(env).__name__)
        return walk(env, max_states)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(enumeration, "_walk", spy)
    tiny = ["env=hypergrid", "env.side=3", "batch=4", "updates=2", "rule=natural"]
    for words in (
        ["train", *tiny, "--out", "run"],
        ["certify", "run"],
        ["check", "natgfn.envs:Hypergrid", "side=3"],
    ):
        assert CliRunner().invoke(app, words).exit_code == 0
        assert listed == ["Hypergrid"], words
        listed.clear()
    run_demo(tmp_path / "demo", updates=2)
    assert listed == ["Hypergrid"]


def test_the_library_is_loaded_when_it_is_asked_for():
    lines = python("""
import sys
import natgfn
print(*sys.modules)
natgfn.train
print(*sys.modules)
""")
    before, after = (set(line.split()) for line in lines.splitlines())
    assert not HEAVY & before
    assert {"jax", "equinox", "optax"} <= after
    assert not {"scipy.stats", "scipy.special", "pandas", "networkx", "matplotlib"} & after


def test_type_checkers_see_what_can_be_asked_for():
    tree = ast.parse(Path(natgfn.__file__).read_text())
    (seen,) = (node for node in tree.body if isinstance(node, ast.If))
    names = {alias.name for node in seen.body for alias in node.names}
    assert names == natgfn._FOLDERS | set(natgfn._INSIDE)
    assert names <= set(dir(natgfn))
    for name in names:
        assert getattr(natgfn, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        natgfn.trian  # noqa: B018


def test_programs_are_kept_for_the_next_process(tmp_path: Path):
    def run() -> tuple[str, int]:
        value, hits = python(COMPILE, XDG_CACHE_HOME=str(tmp_path)).split()
        return value, int(hits)

    value, hits = run()
    assert hits == 0
    (folder,) = (tmp_path / "natgfn").iterdir()
    kept = programs(folder)
    assert run() == (value, len(kept))
    # A process was killed while writing: no harm, and no word.
    for path in kept:
        path.write_bytes(path.read_bytes()[:20])
    assert run() == (value, 0)


def test_no_program_is_kept_if_the_user_says_so(tmp_path: Path):
    python(COMPILE, HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), NATGFN_CACHE="off")
    assert not programs(tmp_path)


def test_the_user_may_choose_a_folder(tmp_path: Path):
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    python(COMPILE, NATGFN_CACHE=str(ours), HOME=str(tmp_path / "home"))
    assert programs(ours)
    assert programs(tmp_path) == programs(ours)
    python(COMPILE, NATGFN_CACHE=str(tmp_path / "no"), JAX_COMPILATION_CACHE_DIR=str(theirs))
    assert programs(theirs)
    assert not programs(tmp_path / "no")


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    assert python(COMPILE, NATGFN_CACHE=str(tmp_path / "file")).startswith("1.68")


def test_where_programs_are_kept():
    assert chosen_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/natgfn")
    usual = Path.home() / ".cache" / "natgfn"
    assert chosen_folder({}) == chosen_folder({"XDG_CACHE_HOME": "relative"}) == usual
    assert chosen_folder({"NATGFN_CACHE": "/y", "XDG_CACHE_HOME": "/x"}) == Path("/y")
    assert all(chosen_folder({"NATGFN_CACHE": told}) is None for told in ("off", "OFF", "0"))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path):
    (tmp_path / "jax-1").mkdir()
    (tmp_path / "jax-2").mkdir()
    (tmp_path / "jax-2" / "notes").write_bytes(bytes(1_000))
    for age, name in enumerate(["jax-1/a", "jax-2/b", "jax-1/c", "jax-2/d"]):
        path = tmp_path / f"{name}-cache"
        path.write_bytes(bytes(100))
        os.utime(path, (1_000 - age, 1_000))
    shrink(tmp_path, 400)
    assert len(programs(tmp_path)) == 4
    shrink(tmp_path, 299)
    assert sorted(path.name for path in programs(tmp_path)) == ["a-cache", "b-cache"]
    assert (tmp_path / "jax-2" / "notes").exists()


def test_what_extras_bring_is_named_where_it_is_missing(tmp_path: Path):
    """And everything else works without them; `make release-check` runs the demo so."""
    listed, refused, drawn = python(f"""
import sys
sys.modules.update(dict.fromkeys(["pandas", "matplotlib", "jinja2"]))
from pathlib import Path
from typer.testing import CliRunner
from natgfn.cli import app
from natgfn.cli.demo import draw
from natgfn.errors import MissingExtra
for words in (["list", "envs"], ["dag", "exact", "sachs", "--out", {str(tmp_path / "dag")!r}]):
    done = CliRunner().invoke(app, words)
    print(done.exit_code, done.stderr.strip())
try:
    draw({{}}, Path({str(tmp_path)!r}))
except MissingExtra as error:
    print(error)
""").splitlines()
    assert listed.strip() == "0"
    assert refused == "2 error: pandas is not installed: pip install 'natgfn[dag]'"
    assert drawn == "matplotlib is not installed: pip install 'natgfn[plot]'"
