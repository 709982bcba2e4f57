"""`natgfn graphical`: numbers against a list of all assignments, and errors of one line."""

import json
from pathlib import Path

import jax
import networkx as nx
import numpy as np
import pandas as pd
import pytest
from graphical_oracles import ising_grid, listed, random_graph
from scipy.stats import chi2
from test_cli import assert_one_line, natgfn

import natgfn as ng
from natgfn.figures import draw_marginals
from natgfn.graphical import FactorGraph, ising, read_uai, write_uai
from natgfn.training import load_setup, loop, reopen

MODEL = """MARKOV
3
2 2 3
2
2 0 1
3 0 1 2

4
 0.436 0.564
 0.128 0.0

12
 0.210 0.333 0.457
 0.811 0.000 0.189
 1.000 2.500 0.250
 0.500 0.500 0.500
"""
"""As other tools write it; the second value of both of the first two is impossible."""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("model.uai").write_text(MODEL)
    Path("model.evid").write_text("1 1 1\n")


def marginals(graph: FactorGraph) -> np.ndarray:
    """Of all values of all variables, one after the other."""
    known = listed(graph)
    columns = zip(known.assignments.T, graph.cards, strict=True)
    return np.concatenate([np.bincount(column, known.law, card) for column, card in columns])


def summary(folder: str) -> dict:
    return json.loads(Path(folder, "summary.json").read_text())


@pytest.mark.parametrize("evidence", [None, "model.evid"])
def test_exact_agrees_with_a_list_of_all_assignments(evidence: str | None):
    options = [] if evidence is None else ["--evidence", evidence]
    result = natgfn("graphical", "exact", "model.uai", *options, "--out", "run", "--samples", 4000)
    assert result.exit_code == 0, result.output
    assert result.output.startswith("3 variables, ")
    graph = read_uai("model.uai", evidence)
    known = listed(graph)
    table = pd.read_csv("run/marginals.csv")
    assert list(table.columns) == ["variable", "value", "probability"]
    assert table["variable"].tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert table["value"].tolist() == [0, 1, 0, 1, 0, 1, 2]
    np.testing.assert_allclose(table["probability"], marginals(graph), atol=1e-14)
    best = pd.read_csv("run/most_probable.csv")
    np.testing.assert_array_equal(best["value"], known.assignments[np.argmax(known.law)])
    found = summary("run")
    assert found["log_z"] == pytest.approx(known.log_z, abs=1e-13)
    assert found["best_log_value"] == pytest.approx(known.log_values.max(), abs=1e-13)
    assert found["versions"]["natgfn"]
    assert Path("run/marginals.png").read_bytes().startswith(b"\x89PNG")

    values = np.load("run/samples.npz", allow_pickle=False)["values"]
    assert values.shape == (4000, 3)
    assert values.dtype == np.uint8
    place = {tuple(x): number for number, x in enumerate(known.assignments.tolist())}
    counts = np.bincount([place[tuple(x)] for x in values.tolist()], minlength=len(known.law))
    wanted, possible = 4000 * known.law, known.law > 0
    assert not counts[~possible].any()
    distance = np.sum((counts - wanted)[possible] ** 2 / wanted[possible])
    assert distance < chi2.isf(1e-6, possible.sum() - 1)


def test_log_z_alone_where_no_junction_tree_fits():
    write_uai(ising_grid(3, 4), "grid.uai")
    result = natgfn("graphical", "exact", "grid.uai", "--max-entries", 20, "--out", "run")
    assert result.exit_code == 0, result.output
    assert "natgfn graphical fit grid.uai" in result.output
    assert summary("run")["log_z"] == pytest.approx(listed(ising_grid(3, 4)).log_z, abs=1e-12)
    assert not Path("run/marginals.csv").exists()


@pytest.mark.parametrize("size", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_fit_says_how_far_it_is(size: int | None):
    """Also with zero factors where the policy sees too little to know them."""
    options = [] if size is None else ["--size", size]
    result = natgfn("graphical", "fit", "model.uai", *options, "--out", "run", "--updates", 40,
                    "--seeds", 2, "--samples", 500)  # fmt: skip
    assert result.exit_code == 0, result.output
    table = pd.read_csv("run/marginals.csv")
    np.testing.assert_allclose(table["exact"], marginals(read_uai("model.uai")), atol=1e-14)
    found = summary("run")
    errors = np.abs(table["probability"] - table["exact"]).max()
    worst = max(found["by_messages"]["marginal_error"])
    assert errors == pytest.approx(worst, rel=1e-6, abs=1e-12)
    assert (errors < 1e-6) == (size is None)
    assert f"no marginal further than {worst:.2g} from exact inference" in result.output
    with np.load("run/samples.npz", allow_pickle=False) as samples:
        assert samples["values"].shape == (500, 3)
        log_weights = samples["log_weights"]
        assert np.isfinite(log_weights).all()
    if size is None:
        np.testing.assert_allclose(log_weights, found["log_z"], atol=1e-4)
    assert found["from_samples"]["effective_share"] <= 1 + 1e-9
    assert found["loopy"]["converged"]


@pytest.mark.slow
def test_fit_without_a_junction_tree_has_estimates_with_errors():
    write_uai(ising_grid(3, 4), "grid.uai")
    known = listed(ising_grid(3, 4))
    result = natgfn("graphical", "fit", "grid.uai", "--max-entries", 60, "--size", 1, "--out",
                    "run", "--updates", 60, "--samples", 4000)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "no error knows what the draws have missed" in result.output
    found, table = summary("run"), pd.read_csv("run/marginals.csv")
    assert found["by_messages"] is None
    drawn = found["from_samples"]
    assert drawn["log_z"] == pytest.approx(known.log_z, abs=5 * drawn["log_z_se"])
    assert drawn["elbo"] < known.log_z
    apart = np.abs(table["corrected"] - marginals(ising_grid(3, 4)))
    assert np.all(apart < 5 * table["corrected_se"])
    share = table["probability"]
    np.testing.assert_allclose(table["probability_se"], np.sqrt(share * (1 - share) / 4000))


def test_an_interrupted_fit_goes_on_to_the_same_files(monkeypatch: pytest.MonkeyPatch):
    command = ["graphical", "fit", "model.uai", "--updates", 10, "--samples", 50, "--out"]
    assert natgfn(*command, "whole").exit_code == 0
    advance, calls = loop.advance, iter(range(4))

    def interrupted(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return advance(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "advance", interrupted)
        result = natgfn(*command, "cut")
    assert_one_line(result, 130, "natgfn resume cut")
    assert not Path("cut/marginals.csv").exists()
    model = Path("model.uai").read_bytes()
    Path("model.uai").unlink()  # the record has all of it
    assert natgfn("resume", "cut").exit_code == 0
    assert Path("cut/marginals.csv").read_bytes() == Path("whole/marginals.csv").read_bytes()
    cut, whole = summary("cut"), summary("whole")
    assert cut.pop("command").replace("cut", "whole") == whole.pop("command")
    assert cut == whole
    Path("model.uai").write_bytes(model)
    assert_one_line(natgfn(*command, "cut"), 2, "already holds a fit", "natgfn resume cut")


def test_a_run_made_in_python_is_opened_again():
    graph = ising(nx.grid_2d_graph(2, 3), 0.4, 0.1)
    run = ng.train(ng.envs.Assignments(graph), updates=4, out="run", progress=False)
    opened = reopen("run", load_setup(Path("run")))
    assert opened.configuration == run.configuration
    env = opened.setup.env
    assert isinstance(env, ng.envs.Assignments)
    assert (env.graph.names, env.graph.scopes) == (graph.names, graph.scopes)
    np.testing.assert_array_equal(env.graph.log_table, graph.log_table)
    assert natgfn("resume", "run").exit_code == 0


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))]
)
def test_a_law_that_sees_too_little_is_the_law_of_its_samples(seed: int):
    graph = random_graph(seed + 20, zeros=0.4, most=5)
    env = ng.envs.Assignments(graph)
    run = ng.train(env, policy=ng.policies.ContextTable(1), updates=2, progress=False)
    known = listed(graph)
    values = known.assignments[known.law > 0]
    objects = ng.envs.Assignment(
        values.astype(np.int8), np.full(len(values), values.shape[1], np.int32)
    )
    log_q, _ = ng.metrics.log_terminal_law(env, run.flow(), objects, 1, key=jax.random.key(0))
    law = np.exp(log_q)
    assert law.sum() == pytest.approx(1, abs=1e-5)
    kl = np.sum(law * (log_q - np.log(known.law[known.law > 0])))
    assert run.metrics["kl"][-1, 0] == pytest.approx(kl, abs=1e-4)
    found = ng.metrics.message_marginals(env, run.state.flow)[0]
    for variable, card in enumerate(graph.cards):
        wanted = np.bincount(values[:, variable], law, card)
        np.testing.assert_allclose(found[variable, :card], wanted, atol=1e-5)


def test_check_of_a_file():
    result = natgfn("check", "model.uai", "order=numbered")
    assert result.exit_code == 0, result.output
    assert "model.uai: fine" in result.output
    assert_one_line(natgfn("check", "model.uai", "order=best"), 2, "order must be one of", "best")
    assert_one_line(natgfn("check", "none.uai"), 2, "cannot read none.uai")


def complete(count: int, zero: bool) -> None:
    """A model in which every two variables share a factor."""
    pair = np.array([[0.0, 0.1], [0.2, -np.inf if zero else 0.0]])
    pairs = [((a, b), pair) for a in range(count) for b in range(a)]
    write_uai(FactorGraph.of([2] * count, pairs), "wide.uai")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("exact none.uai", ("cannot read none.uai", "No such file")),
        ("exact word.uai", ("word.uai is not a UAI file", "MARKOV or BAYES")),
        ("exact short.uai", ("short.uai is not a UAI file", "ends after")),
        ("exact negative.uai", ("negative.uai", "finite and not negative")),
        ("exact zero.uai", ("no assignment of the variables is possible",)),
        ("exact model.uai --evidence word.uai", ("word.uai is not a UAI evidence file",)),
        ("exact model.uai --evidence far.evid", ("far.evid is no evidence", "from 0 to 1", "7")),
        ("exact model.uai --order best", ("order must be one of", "'best'")),
        ("exact model.uai --out model.uai", ("model.uai", "exists")),
        ("exact wide.uai", ("too wide for exact inference", "width 29", "fit wide.uai")),
        ("fit wide.uai", ("is zero somewhere", "width 29")),
        ("fit model.uai --rule best", ("there is no 'best'",)),
        ("fit model.uai --updates 0", ("updates must be at least 1",)),
        ("fit large.uai --size 6", ("a policy that sees 6 variables", "give a smaller --size")),
    ],
)
def test_bad_input_is_one_line(arguments: str, words: tuple[str, ...]):
    Path("word.uai").write_text("MODEL\n1\n2\n0\n")
    Path("short.uai").write_text(MODEL[:-10])
    Path("negative.uai").write_text(MODEL.replace("0.811", "-0.811"))
    Path("zero.uai").write_text("MARKOV\n1\n2\n1\n1 0\n2\n0 0\n")
    Path("far.evid").write_text("1 1 7\n")
    complete(30, zero=True)
    if "large.uai" in arguments:
        pairs = [((a, b), np.zeros((20, 20))) for a in range(10) for b in range(a)]
        write_uai(FactorGraph.of([20] * 10, pairs), "large.uai")
    assert_one_line(natgfn("graphical", *arguments.split()), 2, "error: ", *words)


def test_a_configuration_cannot_hold_a_factor_graph():
    expected = ("needs a factor graph", "natgfn graphical fit")
    assert_one_line(natgfn("train", "env=assignments"), 2, *expected)
    assert_one_line(natgfn("train", "env.name=Assignments", "env.graph=1"), 2, *expected)
    weights = "env.log_weights=[1.0]"
    assert_one_line(natgfn("train", "env=dags", weights), 2, "env.log_weights")


def test_a_picture_of_many_variables_and_of_few(tmp_path: Path):
    rng = np.random.default_rng(0)
    for count, cards in ((3, 4), (60, 3), (5, 20)):
        law = [rng.dirichlet(np.ones(1 + v % cards)) for v in range(count)]
        path = draw_marginals(law, tmp_path / f"{count}.png")
        assert path.read_bytes().startswith(b"\x89PNG")
