"""What a newcomer sees first must work as printed."""

import re
from pathlib import Path

import pytest

from natgfn.experiments import demo

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_ten_lines_run_as_printed(tmp_path, monkeypatch, capsys):
    """With fewer updates, to save time."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert "1_000" in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("1_000", "20"), "README.md", "exec"), {})
    assert (tmp_path / "terminal_law.png").stat().st_size > 10_000
    assert "Natural(" in capsys.readouterr().out


def test_every_link_leads_somewhere():
    targets = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert targets
    root = Path(__file__).parent.parent
    assert [target for target in targets if not (root / target).exists()] == []


def test_the_demo_draws_its_picture_and_says_what_to_do_next(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "UPDATES", 20)
    path = demo.run_demo(tmp_path)
    assert path.read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    for words in ("Natural", "Euclidean", "natgfn train", "natgfn list", "own_environment.py"):
        assert words in out


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md"])
def test_the_files_that_are_named_exist(name):
    root = Path(__file__).parent.parent
    text = (root / name).read_text()
    named = set(re.findall(r"`((?:examples|tests|results|optim)/[\w./]+)`", text))
    places = (root, root / "src" / "natgfn")
    assert [path for path in named if not any((p / path).exists() for p in places)] == []
