"""The index of the paper: no label is missing, links lead somewhere, and numbers are the runs'."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from test_cli import assert_one_line, natgfn

import paper.index
from natgfn import NatgfnError
from paper.experiments import EXPERIMENTS, deceptive_page
from paper.index import PARTS, index_page, reproduce_all
from paper.printed import PRINTED, Measured, Printed, beside

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"


@pytest.fixture(scope="module")
def text() -> str:
    return (RESULTS / "index.paper.md").read_text()


def results(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.paper.json").read_text())


def rows(text: str, label: str) -> list[list[str]]:
    """The cells of the table under a label's heading."""
    section = text.split(f"### `{label}`")[1].split("\n\n")[1]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")]
            for line in section.splitlines()[2:]]  # fmt: skip


def test_every_label_of_the_paper_is_in_the_index():
    labels = (ROOT / "paper" / "data" / "labels.txt").read_text().split()
    assert len(labels) == len(set(labels)) == 26
    listed = [label for part in PARTS.values() for label in part.labels]
    assert sorted(listed) == sorted(labels)
    assert set(PARTS) <= set(EXPERIMENTS)
    assert set(PRINTED) == {label for label in labels if label.startswith("tab:")}


def test_the_committed_index_is_that_of_the_committed_results(text: str):
    assert text == index_page(RESULTS, "paper")
    lines = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| `")}
    for part in PARTS.values():
        for label, entry in part.labels.items():
            links = re.findall(r"\]\(([^)]+)\)", lines[label])
            assert len(links) >= 1 + len(entry.figures), label  # the page, and every figure
            assert all((RESULTS / link).exists() for link in links)


@pytest.mark.parametrize("label", PRINTED)
def test_the_papers_rows_are_printed_as_they_are(text: str, label: str):
    printed = [row for row in rows(text, label) if row[1] == "*paper*"]
    assert [row[0].strip("*") for row in printed] == list(PRINTED[label].rows)
    for row in printed:
        assert row[2 : 2 + len(PRINTED[label].columns)] == [
            *PRINTED[label].rows[row[0].strip("*")].values()
        ]


@pytest.mark.parametrize(("setting", "label"), deceptive_page.LABELS.items())
def test_numbers_of_the_deceptive_grid_are_those_of_its_runs(text: str, setting, label: str):
    side, step = setting
    runs, metrics = results("deceptive")["runs"], ("tv", "discovered", "elbo", "gap", "kl", "jsd")
    shown = 0
    for method, how, *cells in rows(text, label):
        if not how.startswith("ours"):
            continue
        name = method + re.sub(r"^ours(.*), \d+ seeds?$", r"\1", how)
        of = [r for r in runs if (r["side"], r["batch"], r["name"]) == (side, 16, name)]
        of = [r for r in of if r["seed"] != 1_000]
        assert how.endswith(f", {len(of)} seed{'s' * (len(of) > 1)}")
        for metric, shown_as in zip(metrics, cells, strict=False):
            mean = np.mean([run[metric][run["steps"].index(step)] for run in of])
            assert shown_as.split(" ± ")[0] == f"{mean:.4g}"
        shown += 1
    assert shown >= 7 or side == 256


@pytest.mark.parametrize(
    ("target", "label"), [("8 Gaussians", "tab:8g_ext"), ("Rings", "tab:rings_ext")]
)
def test_numbers_of_the_walk_are_those_of_its_rows(text: str, target: str, label: str):
    expected = {}
    for row in results("walk")["rows"]:
        setting = row["setting"]
        if (setting["target"], setting["P_B"]) == (target, "constant"):
            means = [row["metrics"][name]["mean"] for name in ("tv", "modes", "elbo", "gap", "kl")]
            key = row["method"].removesuffix(" (reconstructed)"), setting["rates"]
            expected[key] = [f"{mean:.4g}" for mean in means]
    found = {
        (method, how.split(", ")[1]): [cell.split(" ± ")[0] for cell in cells[:5]]
        for method, how, *cells in rows(text, label)
        if how.startswith("ours")
    }
    assert found == expected
    theirs = PRINTED[label].rows.values()
    sums = [float(row["ELBO"]) + float(row["Gap"]) for row in theirs]
    assert np.ptp(sums) < 2e-4  # the expected log-reward of one target


@pytest.mark.parametrize("name", ["dag-sachs", "dag-synthetic"])
def test_numbers_of_the_continuations_are_those_of_their_runs(text: str, name: str):
    (label,) = (label for label in PARTS[name].labels if label in PRINTED)
    runs, shown = results(name)["runs"], 0
    for method, how, auc, *cells in rows(text, label):
        if not how.startswith("ours"):
            continue
        network, variant = re.fullmatch(r"ours, (\w+)(?:, ([\w ]+))?, \d+ seeds?", how).groups("")
        key = (method, network, variant)
        of = [r for r in runs if (r["method"], r["network"], r["variant"]) == key]
        curves = np.array([run["loss"] for run in of])
        relative = curves / curves[:, :1]
        middle = (relative[:, 1:] + relative[:, :-1]) / 2  # looks are evenly spaced
        assert auc.split(" ± ")[0] == f"{middle.mean():.3g}"
        column = PRINTED[label].columns.index("E-SHD") - 1
        assert cells[column].split(" ± ")[0] == f"{np.mean([r['final']['shd'] for r in of]):.3g}"
        shown += 1
    assert shown >= 3


def test_what_is_far_from_the_paper_is_said_with_its_size():
    printed = Printed(("TV", "modes"), {"Adam": {"TV": "0.2 ± 0.1", "modes": "9 ± 0.0"}}, {})
    cells = {"TV": (0.5, "0.5"), "modes": (9.0, "9")}
    ours = [Measured("Adam", "ours", cells), Measured("new", "ours", cells)]
    lines = beside(printed, ours).splitlines()[2:]
    assert lines[1] == "| Adam | ours | 0.5 | 9 | TV +3.0 |"
    assert lines[2] == "| new | ours | 0.5 | 9 |  |"
    assert "| Adam | **not run** |" in beside(printed, [])


def test_all_runs_every_experiment_and_writes_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    setting = {"nodes": 4}
    claims = [
        {"claim": "good", "holds": True, "evidence": "", "setting": setting},
        {"claim": "bad", "holds": False, "evidence": "1 against 2", "setting": setting},
    ]
    value = {"mean": 0.25, "std": 0.0}
    row = {
        "method": "Adam",
        "setting": setting | {"rates": "tuned rates", "rate": "1"},
        "metrics": dict.fromkeys(("loss", "kl", "tv", "modes"), value),
    }
    found = json.dumps({"claims": claims, "rows": [row]})

    def command(name: str, scale: str, seeds: int | None, out: Path) -> list[str]:
        script = 'test $0 = triangle && echo "$1" > $2 || { echo $0; test $0 != walk; }'
        return ["sh", "-c", script, name, found, str(out / f"{name}.{scale}.json")]

    monkeypatch.setattr(paper.index, "command", command)
    with pytest.raises(NatgfnError, match=r"1 of \d+ experiments failed: see .*walk.smoke.log"):
        reproduce_all(scale="smoke", out=tmp_path)
    for name in set(EXPERIMENTS) - {"triangle"}:
        assert (tmp_path / ".work" / f"{name}.smoke.log").read_text() == f"{name}\n"
    told = capsys.readouterr().err
    assert told.count(" done after") == len(EXPERIMENTS) - 1
    assert "walk: failed after" in told
    text = (tmp_path / "index.smoke.md").read_text()
    line = next(x for x in text.splitlines() if "fig:triangle_case" in x)
    assert "1 of 2" in line
    assert "**not run**" in line  # it wrote no page
    assert "| 4 | Adam | tuned rates | 0.25 ± 0 |" in text
    assert "**Does not hold**:\n\n- bad (nodes 4): 1 against 2" in text
    assert "- good (nodes 4)" in text.split("**Does not hold**")[0]
    assert_one_line(natgfn("reproduce", "all", "--only", "x"), 2, "name it instead of all")


def test_an_experiment_has_a_command_of_its_own(tmp_path: Path):
    words = paper.index.command("triangle", "smoke", 3, tmp_path)
    assert words[2:] == [
        "natgfn.cli",
        *f"reproduce triangle --scale smoke --out {tmp_path}".split(),
        "--seeds",
        "3",
    ]
