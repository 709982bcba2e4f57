"""The house: folders know only those before them, and ask them through the front door."""

import ast
from pathlib import Path

import pytest

import natgfn

ROOT = Path(natgfn.__file__).parent

ORDER = (
    "errors",
    "memory",
    "progress",
    "cache",
    "graphical",
    "envs",
    "statespace",
    "policies",
    "sampling",
    "metrics",
    "objectives",
    "fisher",
    "occupancy",
    "solvers",
    "optim",
    "sources",
    "algorithm",
    "certify",
    "figures",
    "report",
    "watch",
    "training",
    "sweeps",
    "check",
    "dag",
    "cli",
)
"""As CONTRIBUTING.md has it: nothing on the left knows anything on its right."""


def imports(source: str, module: str) -> list[tuple[str, str]]:
    """Every part of natgfn that a module imports, also inside functions: (folder, rest of path)."""
    package = module.split(".")[:-1]
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            path = [*base, *(node.module or "").split(".")] if node.module else base
            names = [[alias.name] for alias in node.names] if path == ["natgfn"] else [[]]
            found += [[*path, *name] for name in names]
        elif isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
    return [(path[1], ".".join(path[2:])) for path in found if path[0] == "natgfn" and path[1:]]


def back_edges(files: dict[str, str]) -> list[str]:
    """Imports from right to left, by module and source text."""
    wrong = []
    for module, source in files.items():
        here = module.split(".")[1]
        for there, _ in imports(source, module):
            if ORDER.index(there) > ORDER.index(here):
                wrong.append(f"{module} imports {there}, which comes after {here}")
    return wrong


def side_doors(files: dict[str, str]) -> list[str]:
    """Imports from inside another folder, instead of what that folder exports."""
    return [
        f"{module} imports natgfn.{there}.{inside}"
        for module, source in files.items()
        for there, inside in imports(source, module)
        if inside and there != module.split(".")[1]
    ]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    found = {}
    for path in ROOT.rglob("*.py"):
        module = ["natgfn", *path.relative_to(ROOT).with_suffix("").parts]
        if module != ["natgfn", "__init__"]:
            found[".".join(module)] = path.read_text()
    return found


def test_every_folder_has_its_place(files):
    assert {module.split(".")[1] for module in files} == set(ORDER)


def test_nothing_knows_what_comes_after_it(files):
    assert back_edges(files) == []


def test_folders_are_entered_by_the_front_door(files):
    assert side_doors(files) == []


def test_everything_that_compiles_keeps_its_programs(files):
    """By way of `graphical`, which every folder that imports JAX imports, or one that does."""
    direct = {"graphical"}
    uses = {module: {there for there, _ in imports(text, module)} for module, text in files.items()}
    for folder in ORDER[ORDER.index("graphical") + 1 :]:
        knows = set().union(*(uses[m] for m in files if m.split(".")[1] == folder))
        if knows & direct:
            direct.add(folder)
    assert "from ..cache import keep_programs" in files["natgfn.graphical.__init__"]
    for module, text in files.items():
        if "import jax" in text and module != "natgfn.cache":
            assert module.split(".")[1] in direct, module


def test_a_back_edge_would_be_noticed(files):
    """Also one that hides in a function."""
    hidden = "def step():\n    from .training import train\n"
    assert back_edges(files | {"natgfn.algorithm": files["natgfn.algorithm"] + hidden}) == [
        "natgfn.algorithm imports training, which comes after algorithm"
    ]
    deep = "from ..training.loop import run\n"
    assert side_doors({"natgfn.dag.fitting": deep}) == [
        "natgfn.dag.fitting imports natgfn.training.loop"
    ]


def test_no_public_function_hides_a_module(files):
    """`natgfn.sampling.rollout` cannot be both a function and a file."""
    for module in files:
        folder, _, name = module.rpartition(".")
        if name.startswith("__"):
            continue
        package = natgfn
        for part in folder.split(".")[1:]:
            package = getattr(package, part, None)
        thing = getattr(package, name, None)
        assert thing is None or type(thing).__name__ == "module", module


def test_the_order_is_the_one_that_is_printed():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text()
    assert " < ".join(ORDER) in " ".join(text.split())
