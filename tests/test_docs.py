"""The documentation: code runs, commands exist, links lead somewhere, nothing is missing."""

import ast
import json
import re
import shlex
from pathlib import Path

import pytest
import typer

from natgfn.cli import app
from natgfn.training import read_settings, setup_from

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in one language, block by block."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slow(page: Path):
    """A page as a parameter; a large space and worker processes take too long for `make test`."""
    marks = [pytest.mark.slow] if page.stem in ("large-spaces", "sweeps") else []
    return pytest.param(page, marks=marks, id=named(page))


def hasten(code: str) -> str:
    """The same with a hundredth of the updates."""
    return re.sub(r"updates=([\d_]+)", lambda m: f"updates={max(2, int(m[1]) // 100)}", code)


def commands() -> list[tuple[Path, str]]:
    """Every line of a page that calls natgfn."""
    found = [(page, block) for page in PAGES for block in blocks(page, "sh")]
    lines = [(page, line) for page, b in found for line in b.replace("\\\n", "").splitlines()]
    return [(page, line) for page, line in lines if line.startswith("natgfn ")]


@pytest.mark.parametrize("page", [slow(p) for p in PAGES if blocks(p, "python")])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    """Block after block in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, code in enumerate(blocks(page, "python")):
        exec(compile(hasten(code), f"{named(page)}, block {number}", "exec"), namespace)


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=named)
def test_an_example_runs(script, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(hasten(script.read_text()), named(script), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*/*.ipynb")), ids=named)
def test_a_notebook_is_that_of_its_script(path):
    """`make notebooks` makes them."""
    script, notebook = path.parents[1] / f"{path.stem}.py", json.loads(path.read_text())
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    cells = re.split(r"^# %%.*\n", script.read_text(), flags=re.MULTILINE)[1:]
    written = [cell.strip() for cell in cells if not cell.startswith("# ")]
    assert [cell.strip() for cell in code] == written
    assert any(cell.get("outputs") for cell in notebook["cells"])


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_command_names_what_exists(page, line, tmp_path):
    """Commands, options and settings. Files need not be there, but a configuration is read."""
    command = typer.main.get_command(app)
    _, *words = shlex.split(line, comments=True)
    while hasattr(command, "resolve_command"):
        _, command, words = command.resolve_command(typer.Context(command), words)
    parsed = command.make_context(line, words).params
    if command.name == "train":
        files = [word for word in parsed["settings"] if word.endswith(".toml")]
        for file in files:
            (tmp_path / file).write_text("".join(blocks(page, "toml")))
        settings = [word for word in parsed["settings"] if word not in files]
        setup_from(read_settings(tmp_path / files[0] if files else None, settings))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_link_leads_somewhere(page):
    targets = re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_has_a_language(page):
    """So that none is left out of the tests above."""
    opened = re.findall(r"^```(.*)$", page.read_text(), re.MULTILINE)[::2]
    assert set(opened) <= {"python", "sh", "toml"}


def test_every_page_of_results_is_on_the_site():
    """`make docs` refuses one that is not; this says so sooner."""
    site = (ROOT / "mkdocs.yml").read_text()
    pages = [named(page) for page in sorted((ROOT / "results").glob("*.md"))]
    assert [page for page in pages if f": {page}\n" not in site] == []


def test_every_folder_is_in_the_reference():
    """Its page shows whatever it exports: see `docs/hooks.py`."""
    package = ROOT / "src" / "natgfn"
    parts = {p.stem for p in package.glob("*.py")} | {p.parent.name for p in package.glob("*/*.py")}
    pages = {page.stem for page in (DOCS / "reference").glob("*.md")}
    assert parts - {"__init__", "cli", "natgfn"} == pages - {"index"}
    for page in pages - {"index"}:
        assert f"::: natgfn.{page}\n" in (DOCS / "reference" / f"{page}.md").read_text()
        assert f"reference/{page}.md" in (ROOT / "mkdocs.yml").read_text()


def documented(module: Path) -> dict[str, bool]:
    """The names that a file defines, and whether each has a docstring of its own."""
    found, body = {}, ast.parse(module.read_text()).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found[node.name] = ast.get_docstring(node) is not None
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            found[ast.unparse(target)] = is_text
    return found


def test_every_exported_name_has_a_docstring():
    missing = []
    for init in sorted((ROOT / "src" / "natgfn").glob("*/__init__.py")):
        for node in ast.parse(init.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
                known = documented(init.parent / f"{node.module}.py")
                names = [alias.name for alias in node.names if alias.asname]
                missing += [f"{init.parent.name}.{n}" for n in names if not known.get(n)]
    assert [name for name in missing if name != "cli.app"] == []
