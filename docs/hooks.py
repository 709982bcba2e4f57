"""What mkdocs does beyond its pages: references of folders, files of the repository, formulas."""

import ast
import html
import logging
import re
from base64 import b64decode
from pathlib import Path

import jupytext
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "natgfn"

_SHOWN = (
    "results/*.md",
    "results/*.png",
    "results/*.json",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "examples/*.py",
    "examples/notebooks/*.ipynb",
)
"""Of the repository, besides `docs/`: pages, and what they show or link to."""

_log = logging.getLogger("mkdocs.hooks.natgfn")

_MATHS = re.compile(
    r'<(span|div) class="arithmatex">(?:\\\((?P<inline>.*?)\\\)|\\\[(?P<block>.*?)\\\])</\1>',
    re.DOTALL,
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The site also has pages that are kept elsewhere in the repository."""
    for pattern in _SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            source = str(path.relative_to(ROOT))
            files.append(File(source, str(ROOT), config.site_dir, config.use_directory_urls))
    for path in sorted(ROOT.glob("examples/*.py")):
        for source, content in page_of(path).items():
            files.append(File.generated(config, f"examples/{source}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_) -> str:
    """Links out of `docs/` lead to files that the site has at its top, and `::: natgfn.folder`
    stands for every name that the folder exports, file by file."""
    inside = "../" * page.file.src_uri.count("/")
    markdown = markdown.replace(f"](../{inside}", f"]({inside}")
    return re.sub(r"^::: natgfn\.(\w+)$", lambda match: reference(match[1]), markdown, flags=re.M)


def on_page_content(text: str, **_) -> str:
    """Formulas as MathML, which browsers draw without a script."""

    def draw(match: re.Match) -> str:
        inline, block = match["inline"], match["block"]
        text = html.unescape(block if inline is None else inline)
        drawn = convert(text, display="inline" if block is None else "block")
        if "\\" in drawn:
            _log.warning("a formula has a command that is not known: %s", text)
        return drawn

    return _MATHS.sub(draw, text)


def page_of(script: Path) -> dict[str, str | bytes]:
    """An example as a page in Markdown, and the pictures that it shows, by file name.

    From its notebook, if it has been executed.
    """
    executed = script.parent / "notebooks" / f"{script.stem}.ipynb"
    text, pictures = [], {}
    for cell in jupytext.read(executed if executed.exists() else script).cells:
        text.append(f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source)
        for output in cell.get("outputs", ()):
            if "text" in output:
                text.append(f"```text\n{output.text}```")
            elif picture := output.data.get("image/png"):
                name = f"{script.stem}.{len(pictures)}.png"
                pictures[name] = b64decode(picture)
                text.append(f"![What the cell above draws]({name})")
    notebook = f" or [notebook](notebooks/{executed.name})" if executed.exists() else ""
    text.insert(1, f"As a [script]({script.name}){notebook}.")
    return {f"{script.stem}.md": "\n\n".join(text), **pictures}


def reference(folder: str) -> str:
    """The directives of mkdocstrings for a folder, or for a module that is a file."""
    init = PACKAGE / folder / "__init__.py"
    if not init.exists():
        plain = "{show_root_heading: false, show_root_toc_entry: false}"
        return f"::: natgfn.{folder}\n    options: {plain}"
    plain = "{members: false, show_root_heading: false, show_root_toc_entry: false}"
    text = [f"::: natgfn.{folder}", f"    options: {plain}", ""]
    for file, names in sorted(exports(init).items(), key=lambda found: found[0] != "base"):
        text += [f"## {file}", ""]
        for name in names:
            text += [f"::: natgfn.{folder}.{name}", "    options: {heading_level: 3}", ""]
    return "\n".join(text)


def exports(init: Path) -> dict[str, list[str]]:
    """The names that an `__init__.py` exports, by the file or folder they come from."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(init.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names if alias.asname == alias.name]
            if names:
                found.setdefault(node.module or "modules", []).extend(names)
    return found
