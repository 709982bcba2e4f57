"""`natgfn dag`: what it writes, the time that it takes, and errors of one line."""

import json
import time
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from dag_oracles import law
from test_cli import assert_one_line, natgfn

from natgfn.cli import dag as commands
from natgfn.dag import BGe, Prior, load, log_weights, posterior


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 60))
    columns = {"a": np.exp(a), "b": np.exp(b), "c": np.exp(a + b + 0.5 * rng.normal(size=60))}
    pd.DataFrame(columns).to_csv("data.csv", index=False)


def test_everything_is_written_and_agrees_with_the_enumeration():
    result = natgfn("dag", "exact", "data.csv", "--out", "run", "--log", "--temperature", "2",
                    "--edge-penalty", "0.3", "--max-parents", "2", "--forbid", "c->a",
                    "--require", "a -> c")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "60 rows, 3 variables" in result.output
    prior = Prior(edge_penalty=0.3, require=(("a", "c"),), forbid=(("c", "a"),))
    table = log_weights(load("data.csv", log=True), BGe(), prior, 2.0)
    dags, probabilities, log_z = law(table)

    edges = pd.read_csv("run/edge_marginals.csv", index_col=0)
    assert list(edges.index) == list(edges.columns) == ["a", "b", "c"]
    expected = np.einsum("n,nij->ij", probabilities, dags)
    np.testing.assert_allclose(edges, expected, atol=1e-10)
    assert edges.loc["a", "c"] == pytest.approx(1)
    assert edges.loc["c", "a"] == 0
    paths = pd.read_csv("run/path_marginals.csv", index_col=0)
    assert np.all(paths.to_numpy() >= expected - 0.025)
    blankets = pd.read_csv("run/markov_blankets.csv", index_col=0).to_numpy()
    np.testing.assert_array_equal(blankets, blankets.T)
    assert Path("run/posterior.png").read_bytes().startswith(b"\x89PNG")
    effects = pd.read_csv("run/effects.csv")
    assert list(effects.columns) == ["cause", "effect", "probability", "mean", "low", "high"]
    known = effects[(effects["cause"] == "a") & (effects["effect"] == "c")].iloc[0]
    assert known["probability"] == 1
    assert known["low"] < 1 < known["high"]  # of logarithms, as it was simulated
    written = nx.get_edge_attributes(nx.read_graphml("run/posterior.graphml"), "probability")
    assert len(written) == (expected >= 0.01).sum()
    assert written["n0", "n2"] == pytest.approx(1)
    assert (
        f"n1 -> n2 [probability={written['n1', 'n2']!r}, label="
        in Path("run/posterior.dot").read_text()
    )
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["log_z_relative_to_empty"] == pytest.approx(log_z, abs=1e-10)
    assert summary["expected_edges"] == pytest.approx(expected.sum(), abs=1e-10)
    assert summary["expected_log_reward"] < summary["log_z_relative_to_empty"]
    assert summary["accuracy"] < 1e-12
    stability = summary["stability"]
    assert stability["edges_over_one_half"] == (expected > 0.5).sum()
    assert stability["note"] in " ".join(result.output.split())
    assert stability["note"] in Path("run/posterior.html").read_text()
    best = dags[probabilities.argmax()]
    named = ["->".join("abc"[end] for end in edge) for edge in np.argwhere(best)]
    assert summary["most_probable_graph"]["edges"] == named == ["a->c", "b->c"]
    assert summary["most_probable_graph"]["probability"] == pytest.approx(probabilities.max())
    chosen = summary["most_probable_class"]
    assert (chosen["one_way"], chosen["either_way"]) == (["a->c", "b->c"], [])
    assert chosen["share_of_draws"] == pytest.approx(probabilities.max(), abs=0.025)
    assert summary["options"]["forbid"] == ["c->a"]
    assert summary["options"]["temperature"] == 2.0
    assert summary["options"]["max_parents"] == 2


@pytest.mark.slow
def test_the_papers_target_on_the_packaged_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(posterior, "SAMPLES", 100)  # to save time
    result = natgfn("dag", "exact", "sachs", "--log", "--temperature", "paper", "--out", "run")
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["options"]["edge_penalty"] == 0.5
    assert summary["log_z_relative_to_empty"] == pytest.approx(66.907589, abs=1e-5)
    assert summary["expected_edges"] == pytest.approx(25.17689, abs=1e-4)
    assert summary["accuracy"] < 1e-12


def test_discrete_data():
    rows = ["yes,low", "no,high", "yes,low", "no,high", "yes,low", "no,low"]
    Path("levels.csv").write_text("\n".join(["a,b", *rows]) + "\n")
    result = natgfn("dag", "exact", "levels.csv", "--discrete")
    assert result.exit_code == 0, result.output
    edges = pd.read_csv("dag/edge_marginals.csv", index_col=0)
    assert edges.loc["a", "b"] == pytest.approx(edges.loc["b", "a"], abs=1e-12)
    assert json.loads(Path("dag/summary.json").read_text())["options"]["score"] == "BDeu"
    assert not Path("dag/effects.csv").exists()


def test_effects_that_are_no_numbers_do_not_lose_the_rest():
    table = pd.read_csv("data.csv")
    pd.DataFrame({"a": 1e-150 * table["a"], "=c": 1e150 * table["c"]}).to_csv("x.csv", index=False)
    result = natgfn("dag", "exact", "x.csv", "--out", "run")
    assert result.exit_code == 0, result.output
    assert "no effects.csv: the effect of 'a' on '=c' is too large" in " ".join(
        result.output.split()
    )
    assert Path("run/posterior.png").exists()
    assert not Path("run/effects.csv").exists()
    table.rename(columns={"c": "=c"}).to_csv("x.csv", index=False)
    assert natgfn("dag", "exact", "x.csv", "--out", "run").exit_code == 0
    assert set(pd.read_csv("run/effects.csv")["cause"]) == {"a", "b", "'=c"}


def test_a_table_alone_is_enough():
    """Also with options before it, and where it is called like a command."""
    Path("exact").write_bytes(Path("data.csv").read_bytes())
    given = (["data.csv", "--out", "run"], ["--seed", "1", "--out", "run", "./exact"])
    for arguments in (["exact", "data.csv", "--out", "run"], *given):
        result = natgfn("dag", *arguments)
        assert result.exit_code == 0, result.output
        assert "exact: all graphs were summed over" in result.output
        summary = json.loads(Path("run/summary.json").read_text())
        assert summary["command"].startswith("natgfn dag exact ")
    assert "Missing argument" in natgfn("dag", "exact").output
    page = natgfn("dag", "--help").output
    assert all(command in page for command in ("DATA.csv", "exact", "chains", "fit"))
    assert "--minutes" in natgfn("dag", "data.csv", "--help").output


def write_wide() -> None:
    """17 variables, which are too many for exact sums."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(100, 17))
    values[:, 1:] += 0.7 * values[:, :-1]
    pd.DataFrame(values).add_prefix("x").to_csv("wide.csv", index=False)


@pytest.mark.slow
@pytest.mark.trains
def test_a_minute_is_kept_and_the_same_again_goes_on():
    """With a core for this test."""
    write_wide()
    command = ("dag", "wide.csv", "--out", "run", "--minutes")
    assert natgfn(*command, "0.01").exit_code == 0  # compiles, and makes next to no updates
    first = json.loads(Path("run/summary.json").read_text())
    before = Path("run/record.jsonl").read_text().splitlines()
    started = time.monotonic()
    result = natgfn(*command, "1")
    assert result.exit_code == 0, result.output
    assert time.monotonic() - started < 75
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["updates"] > 10 + first["updates"]
    assert summary["trust"]["eubo_less_elbo"] < first["trust"]["eubo_less_elbo"] / 2
    assert summary["options"]["minutes"] == 1
    assert summary["trust"]["elbo"] < summary["trust"]["eubo"]
    assert summary["verdict"]["word"] in result.output
    # What it has learned, and what chains found for it, is kept.
    after = Path("run/record.jsonl").read_text().splitlines()
    assert after[1 : len(before)] == before[1:]
    known = [json.loads(lines[0])["configuration"]["source"] for lines in (before, after)]
    assert known[0] == known[1]
    # Another target is not the same.
    assert_one_line(natgfn(*command, "1", "--max-parents", "3"), 2, "already holds a fit")


def test_minutes_are_kept_for_effects_and_pages():
    """A tenth of ten minutes; of one minute, as long as it takes for so many variables."""
    assert commands._until_writing(10.0, 64) == pytest.approx(9.0)
    assert commands._until_writing(1.0, 64) == pytest.approx(0.5)
    assert commands._until_writing(1.0, 17) == pytest.approx(0.9)
    assert commands._until_writing(0.1, 64) == pytest.approx(0.05)


def test_what_is_the_same_but_for_its_minutes():
    told = {"case": {"data": "x", "forbid": None}, "own": {"minutes": 2.0, "seed": 0}}

    def asked(minutes: float | None = 1.0, **own) -> str:
        return json.dumps(told | {"own": {"minutes": minutes, "seed": 0} | own})

    assert commands._longer(asked(), told)
    assert commands._longer(asked(2.0), told)
    assert not commands._longer(asked(None), told)
    assert not commands._longer(asked(), told | {"own": {"minutes": None, "seed": 0}})
    assert not commands._longer(asked(seed=1), told)
    for nonsense in ("", "[]", '{"own": 3}', "{"):
        assert not commands._longer(nonsense, told)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("data.csv --minutes 0", ("minutes must be positive", "got 0")),
        ("data.csv --minutes nan", ("minutes must be positive", "got nan")),
        ("exat data.csv", ("unexpected extra argument",)),
        ("fit data.csv --minutes 1 --updates 9", ("give minutes", "or updates and evidence")),
        ("fit data.csv --minutes -1", ("minutes must be positive", "got -1")),
    ],
)
def test_bad_minutes_are_one_line(arguments: str, words: tuple[str, ...]):
    result = natgfn("dag", *arguments.split())
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert all(word in result.output for word in words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("missing.csv", ("missing.csv", "No such file")),
        ("constant.csv", ("'b' is constant", "remove it")),
        ("text.csv", ("'b' has 'low' in row 2", "--discrete")),
        ("data.csv --forbid a-b", ("expected an edge such as A->B", "'a-b'")),
        ("data.csv --forbid a->x", ("no variable 'x'", "a, b, c")),
        ("data.csv --require a->b --require b->a", ("must not form a cycle",)),
        ("data.csv --temperature hot", ("a number or paper", "'hot'")),
        ("data.csv --temperature 0", ("temperature must be positive", "got 0")),
        ("data.csv --edge-penalty nan", ("edge_penalty must be finite",)),
        ("data.csv --max-parents -1", ("max_parents must be at least 0", "-1")),
        ("wide.csv", ("27 variables", "more than the limit of 8 GB", "fewer variables")),
        ("data.csv --out data.csv", ("data.csv", "exists")),
    ],
)
def test_bad_input_is_one_line(arguments: str, words: tuple[str, ...]):
    Path("constant.csv").write_text("a,b\n1,2\n2,2\n3,2\n")
    Path("text.csv").write_text("a,b\n1,2\n2,low\n3,2\n")
    wide = pd.DataFrame(np.random.default_rng(1).normal(size=(30, 27)))
    wide.add_prefix("x").to_csv("wide.csv", index=False)
    assert_one_line(natgfn("dag", "exact", *arguments.split()), 2, "error: ", *words)
