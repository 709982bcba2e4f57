"""Make the notebooks: scripts of `examples/`, all or those named, executed, with their outputs."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parent.parent / "examples"


def main(names: list[str]) -> None:
    """Execute scripts in a folder of their own, so that the files they write are left behind."""
    for script in sorted(EXAMPLES.glob("*.py")):
        if names and script.stem not in names:
            continue
        notebook = jupytext.read(script)
        with TemporaryDirectory() as folder:
            where = {"metadata": {"path": folder}}
            NotebookClient(notebook, kernel_name="python3", resources=where).execute()
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"  # the same each time
            cell.metadata.pop("execution", None)  # no times
        nbformat.write(notebook, EXAMPLES / "notebooks" / f"{script.stem}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
