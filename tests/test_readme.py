"""What a newcomer sees first must work as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from natgfn.cli.demo import run_demo

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
FACTOR_GRAPHS = (ROOT / "docs" / "how-to" / "factor-graphs.md").read_text()


def as_a_user(*arguments: str, folder: Path) -> str:
    """What a command prints, compiled as a user's would be, not as the tests are."""
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.slow
def test_the_ten_lines_run_as_printed(tmp_path):
    """With fewer updates, to save time."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "1_000" in code
    as_a_user("-c", code.replace("1_000", "20"), folder=tmp_path)
    assert (tmp_path / "terminal_law.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_factor_graph_of_the_documentation_in_full(tmp_path):
    """The numbers that the page gives for a 10 x 10 grid."""
    code, _ = re.findall(r"```python\n(.*?)```", FACTOR_GRAPHS, re.DOTALL)
    shown = as_a_user("-c", code.replace("(4, 4)", "(10, 10)"), folder=tmp_path)
    assert "87.1386" in shown
    shown = as_a_user("-m", "natgfn.cli", "graphical", "exact", "grid.uai", folder=tmp_path)
    assert "log Z 87.138617" in shown


@pytest.mark.slow
def test_this_machine_is_healthy(tmp_path):
    assert "healthy" in as_a_user("-m", "natgfn.cli", "doctor", folder=tmp_path)


def test_the_demo_draws_its_picture_and_says_what_to_do_next(tmp_path, capsys):
    path = run_demo(tmp_path, updates=20)
    assert path.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    for words in ("Natural", "Euclidean", "natgfn train", "natgfn list", "own_environment.py"):
        assert words in out


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_the_files_that_are_named_exist(name):
    text = (ROOT / name).read_text()
    named = set(re.findall(r"`((?:examples|tests|results|optim)/[\w./]+)`", text))
    places = (ROOT, ROOT / "src" / "natgfn")
    assert [path for path in named if not any((p / path).exists() for p in places)] == []
