"""UAI files: read back as written, as pyAgrum has them, and refused in one line."""

import itertools
import json
import subprocess
import sys
import warnings
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from natgfn import NatgfnError
from natgfn.graphical import FactorGraph, bayesian_network, read_evidence, read_uai, write_uai

with warnings.catch_warnings(action="ignore"):  # raised, those of SWIG would crash the process
    import pyagrum as gum
    import pyagrum.markov_random_field

ALARM = Path(__file__).parents[1] / "paper" / "data" / "alarm.uai"

SMALL = """MARKOV
3
2 2 3
2
2 1 0
3 0 1 2

4
 4.0 2.4
 1.0 0.0

12
 2.25 3.25 3.75
 0.0 0.0 10
 1.875 4.0 3.333
 2 2 3.4e-1
"""
"""Three variables: a factor of the second and the first, then one of all three."""


def joint(graph: FactorGraph) -> np.ndarray:
    """`R` of all assignments, an axis a variable."""
    values = np.array(list(itertools.product(*map(range, graph.cards))))
    return np.exp(graph.log_value(values)).reshape(graph.cards)


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_last_variable_of_a_scope_is_the_fastest(tmp_path: Path):
    found = joint(read_uai(write(tmp_path / "m.uai", SMALL)))
    pair = {(0, 0): 4.0, (0, 1): 2.4, (1, 0): 1.0, (1, 1): 0.0}
    rows = {(0, 0): (2.25, 3.25, 3.75), (0, 1): (0, 0, 10), (1, 0): (1.875, 4, 3.333)}
    rows[1, 1] = (2, 2, 0.34)
    for a, b, c in itertools.product(range(2), range(2), range(3)):
        assert found[a, b, c] == pytest.approx(pair[b, a] * rows[a, b][c], rel=1e-14)


def test_comments_and_white_space_do_not_matter(tmp_path: Path):
    plain = read_uai(write(tmp_path / "a.uai", SMALL))
    text = "c made by hand\r\nc\r\n" + SMALL.replace("\n", " # 7\r\n").replace(" ", "\t ")
    for other in (text, " ".join(SMALL.split()), SMALL.replace("MARKOV", "BAYES")):
        found = read_uai(write(tmp_path / "b.uai", other))
        assert (found.cards, found.scopes) == (plain.cards, plain.scopes)
        np.testing.assert_array_equal(found.log_table, plain.log_table)


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[int], list[tuple[list[int], np.ndarray]]]:
    """Numbers of values, scopes and logarithms, from impossible to near the limits of float64."""
    cards = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    scopes = st.lists(st.integers(0, len(cards) - 1), unique=True, max_size=3)
    logs = st.floats(-700, 700) | st.just(-np.inf)
    factors = []
    for scope in draw(st.lists(scopes, max_size=4)):
        shape = [cards[v] for v in scope]
        size = int(np.prod(shape))
        table = draw(st.lists(logs, min_size=size, max_size=size))
        factors.append((scope, np.reshape(table, shape)))
    return cards, factors


@given(parts=parts())
def test_what_is_written_is_read(parts: tuple, tmp_path_factory: pytest.TempPathFactory):
    graph = FactorGraph.of(*parts)
    path = tmp_path_factory.getbasetemp() / "m.uai"
    write_uai(graph, path)
    back = read_uai(path)
    assert (back.cards, back.scopes) == (graph.cards, graph.scopes)
    np.testing.assert_allclose(back.log_table, graph.log_table, rtol=1e-14, atol=1e-15)


def test_what_a_file_cannot_hold(tmp_path: Path):
    for log in (-800.0, 800.0):
        graph = FactorGraph.of((2,), [((0,), np.array([-np.inf, log]))])
        with pytest.raises(ValueError, match=rf"factor 0 has the logarithm {log:g}: expected"):
            write_uai(graph, tmp_path / "m.uai")
    assert not (tmp_path / "m.uai").exists()
    with pytest.raises(NatgfnError, match=r"cannot write .*: Is a directory"):
        write_uai(FactorGraph.of((2,), []), tmp_path)


def standard(bn: gum.BayesNet) -> str:
    """A Bayesian network of pyAgrum in the format, every entry asked for by name."""
    names = [bn.variable(node).name() for node in sorted(bn.nodes())]
    cards = {name: bn.variable(name).domainSize() for name in names}
    scopes = [[names[p] for p in sorted(bn.parents(name))] + [name] for name in names]
    lines = ["BAYES", str(len(names)), " ".join(str(cards[name]) for name in names)]
    lines += [str(len(scopes))]
    lines += [" ".join(map(str, [len(s), *map(names.index, s)])) for s in scopes]
    for scope in scopes:
        places = list(itertools.product(*(range(cards[name]) for name in scope)))
        entries = [bn.cpt(scope[-1])[dict(zip(scope, at, strict=True))] for at in places]
        lines += [str(len(entries)), " ".join(map(repr, entries))]
    return "\n".join(lines)


def agrum_joint(model: gum.BayesNet | gum.MarkovRandomField) -> np.ndarray:
    names = [model.variable(node).name() for node in sorted(model.nodes())]
    if isinstance(model, gum.BayesNet):
        tables = [model.cpt(name) for name in names]
    else:
        tables = [model.factor(nodes) for nodes in model.factors()]
    found = np.ones([model.variable(name).domainSize() for name in names])
    for at in np.ndindex(found.shape):
        values = dict(zip(names, at, strict=True))
        for table in tables:
            found[at] *= table[{name: values[name] for name in table.names}]
    return found


def check_against_agrum(
    path: Path, model: gum.BayesNet | gum.MarkovRandomField, tolerance: float
) -> None:
    """The same numbers, with and without evidence on the first and the last variable."""
    expected = agrum_joint(model)
    np.testing.assert_allclose(joint(read_uai(path)), expected, rtol=tolerance)
    last = expected.ndim - 1
    evidence = write(path.with_suffix(".evid"), f"2 0 1 {last} 0\n")
    possible = np.zeros(expected.shape)
    possible[1, ..., 0] = 1
    found = joint(read_uai(path, evidence))
    np.testing.assert_allclose(found, expected * possible, rtol=tolerance)


def test_a_tree_that_pyagrum_writes(tmp_path: Path):
    """With one parent at most: its order of several parents is not that of the format."""
    gum.initRandom(1)
    bn = gum.fastBN("A[3]->B[2]->C[4];B->D[3];A->E[2]")
    gum.saveBN(bn, str(tmp_path / "x.uai"))
    check_against_agrum(tmp_path / "x.uai", bn, 1e-4)  # pyAgrum writes six digits


def test_a_markov_network_that_pyagrum_writes(tmp_path: Path):
    """Of one pair: its order of more variables is not that of the format."""
    gum.initRandom(1)
    model = gum.fastMRF("A[3]--B[4]")
    model.generateFactors()
    gum.saveMRF(model, str(tmp_path / "x.uai"))
    check_against_agrum(tmp_path / "x.uai", model, 1e-4)


@pytest.mark.parametrize("text", ["A[3]->C[2]<-B[4];D[3]->C", "A[3]->B->C[4]->D;A->D[3]<-B;A->C"])
def test_a_bayesian_network_of_pyagrum(tmp_path: Path, text: str):
    gum.initRandom(1)
    bn = gum.fastBN(text)
    check_against_agrum(write(tmp_path / "x.uai", standard(bn)), bn, 1e-12)


def test_evidence_in_both_forms(tmp_path: Path):
    for text, expected in {
        "2 5 1 0 3": {5: 1, 0: 3},
        "2\n5 1\n0 3\n": {5: 1, 0: 3},
        "1\n2 5 1 0 3\n": {5: 1, 0: 3},
        "1 7 2": {7: 2},
        "1\n1 7 2": {7: 2},
        "1 1 1": {1: 1},
        "1 1 1 1": {1: 1},
        "0": {},
        "1\n0\n": {},
    }.items():
        assert read_evidence(write(tmp_path / "m.evid", text)) == expected


EVIDENCE = {
    "empty": ("", "got 0 numbers"),
    "two samples": ("2\n1 0 1\n1 0 0", "of one sample; got 7 numbers, '2 1 0 1 1 ...'"),
    "too few": ("2 5 1", "got 3 numbers"),
    "too many": ("1 5 1 0 0", "got 5 numbers"),
    "twice": ("2 5 1 5 1", "variable 5 is observed twice"),
    "negative": ("1 0 -1", "got '-1'"),
    "a word": ("1 x 1", "got 'x'"),
    "a fraction": ("1 0 1.0", "got '1.0'"),
    "a promise": ("9" * 5000, "got '99999999999999999999...'"),
}


@pytest.mark.parametrize("name", EVIDENCE)
def test_evidence_that_cannot_be_used_gets_one_clear_line(tmp_path: Path, name: str):
    text, words = EVIDENCE[name]
    path = write(tmp_path / "m.evid", text)
    with pytest.raises(NatgfnError) as error:
        read_evidence(path)
    assert str(error.value).startswith(f"{path} is not a UAI evidence file: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_evidence_on_what_is_not_there(tmp_path: Path):
    path = write(tmp_path / "m.uai", SMALL)
    for text, words in {
        "1 3 0": "from 0 to 2, got 3",
        "1 2 3": "2 takes from 0 to 2, got 3",
    }.items():
        evidence = write(tmp_path / "m.evid", text)
        with pytest.raises(NatgfnError, match=words) as error:
            read_uai(path, evidence)
        assert str(error.value).startswith(f"{evidence} is no evidence for {path}: ")
    with pytest.raises(NatgfnError, match=r"cannot read .*no\.evid: No such file"):
        read_uai(path, tmp_path / "no.evid")


TABLES = "MARKOV 2 2 2 2 1 0 1 1 "
MANY = " ".join(["2"] * 65)
FILES = {
    "empty": ("", "must start with MARKOV or BAYES, got ''"),
    "preamble": ("markov 1 2 0", "must start with MARKOV or BAYES, got 'markov'"),
    "sparse": ("WCSP 1 2 0", "got 'WCSP'"),
    "only a preamble": ("MARKOV", "ends where the number of variables should be"),
    "no variables": ("MARKOV 0 0", "the number of variables must be from 1 to 67108864, got '0'"),
    "a fraction": ("MARKOV 2.0", "got '2.0'"),
    "few cardinalities": ("MARKOV 3 2 2", "where the number of values of variable 2 should be"),
    "cardinality": ("MARKOV 1 0 0", "values of variable 0 must be from 1 to 8388608, got '0'"),
    "negative cardinality": ("MARKOV 1 -2 0", "must be from 1 to 8388608, got '-2'"),
    "large cardinality": ("MARKOV 1 1000000000000 0", "got '1000000000000'"),
    "large cardinalities": ("MARKOV 2 8000000 8000000 0", "16000000 values, more than 8388608"),
    "large number": ("MARKOV 1 " + "9" * 9999 + " 0", "got '99999999999999999999...'"),
    "many variables": ("MARKOV 1000000000000 2 2", "from 1 to 67108864, got '1000000000000'"),
    "many factors": ("MARKOV 1 2 67000000 1 0", "number of variables of factor 1 should be"),
    "no factors": ("MARKOV 1 2", "ends where the number of factors should be"),
    "short scope": ("MARKOV 2 2 2 1 2 0", "ends where a variable of factor 0 should be"),
    "scope": ("MARKOV 2 2 2 1 1 2", "a variable of factor 0 must be from 0 to 1, got '2'"),
    "repeated": ("MARKOV 2 2 2 1 2 1 1 4 1 1 1 1", "factor 0 names a variable twice: (1, 1)"),
    "long scope": (f"MARKOV 65 {MANY} 1 65 0", "variables of factor 0 must be from 0 to 64"),
    "large factor": (f"MARKOV 65 {MANY} 1 60 " + " ".join(map(str, range(60))), "67108864 entries"),
    "no tables": (TABLES, "ends where the number of entries of factor 0 should be"),
    "wrong size": (TABLES + "3 1 1 1 2 1 1", "factor 0 must have 2 entries, the file says '3'"),
    "no second table": (TABLES + "2 1 1", "the number of entries of factor 1 should be"),
    "too few": (TABLES + "2 1 1 2 1", "ends after 1 of 2 entries of factor 1"),
    "too many": (TABLES + "2 1 1 2 1 1 1 5", "goes on after its last factor: '1'"),
    "negative": (TABLES + "2 1 1 2 -0.5 1", "factor 1 has -0.5: expected"),
    "NaN": (TABLES + "2 nan 1 2 1 1", "factor 0 has nan: expected"),
    "NaN entries": (TABLES + "nan 1 1 2 1 1", "factor 0 must have 2 entries, the file says 'nan'"),
    "infinite": (TABLES + "2 1 1 2 1 inf", "factor 1 has inf: expected"),
    "too large": (TABLES + "2 1 1e999 2 1 1", "factor 0 has inf: expected"),
    "a word": (TABLES + "2 1 one 2 1 1", "a table must have numbers, got 'one'"),
    "underscores": (TABLES + "2 1 1_0 2 1 1", "a table must have numbers, got '1_0'"),
    "two points": (TABLES + "2 1 1.2.3 2 1 1", "a table must have numbers, got '1.2.3'"),
    "other digits": (TABLES + "2 1 \u0661 2 1 1", r"got '\\xd9\\xa1'"),
    "binary": (b"\x80\x04\x95" + bytes(range(256)), "must start with MARKOV or BAYES"),
    "binary later": (b"MARKOV 1 2 1 1 0 2 \x00\x01 1", r"got '\x00\x01'"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used_gets_one_clear_line(tmp_path: Path, name: str):
    text, words = FILES[name]
    path = write(tmp_path / "m.uai", text)
    with pytest.raises(NatgfnError) as error:
        read_uai(path)
    assert str(error.value).startswith(f"{path} is not a UAI file: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < len(str(path)) + 200


def test_files_that_are_not_there(tmp_path: Path):
    for read in (read_uai, read_evidence):
        with pytest.raises(NatgfnError, match=r"cannot read .*no\.uai: No such file"):
            read(tmp_path / "no.uai")
        with pytest.raises(NatgfnError, match=r"cannot read .*: Is a directory"):
            read(tmp_path)


def test_no_more_is_read_than_allowed(tmp_path: Path):
    path = tmp_path / "m.uai"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # bytes, none of them on the disk
    for read in (read_uai, read_evidence):
        with pytest.raises(NatgfnError, match="has more than 67108864 bytes: a larger max_bytes"):
            read(path)
    size = len(write(path, SMALL).read_bytes())
    with pytest.raises(NatgfnError, match=f"more than {size - 1} bytes"):
        read_uai(path, max_bytes=size - 1)
    assert read_uai(path, max_bytes=size).cards == (2, 2, 3)


def test_a_long_number_takes_no_time(tmp_path: Path):
    long = write(tmp_path / "m.uai", TABLES + "2 1 1 2 1 0." + "1" * 10_000_000)
    assert np.exp(read_uai(long).log_table[-1]) == pytest.approx(1 / 9)


@pytest.mark.slow
def test_ten_megabytes_take_seconds(tmp_path: Path):
    """150,000 factors of four entries, in a process that does not check annotations."""
    entries = np.random.default_rng(0).random((150_000, 4)).round(12)
    lines = ["MARKOV", "150001", "2 " * 150_001, "150000"]
    lines += [f"2 {v} {v + 1}" for v in range(150_000)]
    lines += [f"4\n{' '.join(map(repr, row))}" for row in entries.tolist()]
    path = write(tmp_path / "m.uai", "\n".join(lines))
    assert path.stat().st_size > 10_000_000
    code = """
import sys, time
from natgfn.graphical import read_uai
start = time.process_time()
graph = read_uai(sys.argv[1])
print(time.process_time() - start, graph.log_table.sum())
"""
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, total = map(float, done.stdout.split())
    assert seconds < 10  # two, unless the machine is busy
    assert total == pytest.approx(np.log(entries).sum())


def survives(directory: Path, text: bytes) -> None:
    """A file is read, or refused by one line."""
    path = write(directory / "m.uai", text)
    for read in (read_uai, read_evidence):
        message = ""
        try:
            read(path)
        except NatgfnError as error:
            message = str(error)
        assert not message or (str(path) in message and "\n" not in message)


WORDS = st.sampled_from(
    [
        *"012348x#c\n",
        "MARKOV",
        "BAYES",
        "-1",
        "0.5",
        "1e400",
        "nan",
        "inf",
        "1_0",
        "9999999",
        "9" * 20,
    ]
)


@given(text=st.binary(max_size=200))
def test_any_bytes(text: bytes, tmp_path_factory: pytest.TempPathFactory):
    survives(tmp_path_factory.getbasetemp(), text)
    survives(tmp_path_factory.getbasetemp(), b"MARKOV 1 2 1 1 0 2 " + text)


@given(text=st.text(max_size=200))
def test_any_text(text: str, tmp_path_factory: pytest.TempPathFactory):
    survives(tmp_path_factory.getbasetemp(), text.encode("utf-8", "surrogatepass"))


@given(words=st.lists(WORDS, max_size=30))
def test_any_words(words: list[str], tmp_path_factory: pytest.TempPathFactory):
    survives(tmp_path_factory.getbasetemp(), " ".join(words).encode())
    survives(tmp_path_factory.getbasetemp(), " ".join(["MARKOV", *words]).encode())


@given(data=st.data())
def test_a_file_with_words_changed(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory):
    words = SMALL.split()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(words) - 1))
        words[place : place + data.draw(st.integers(0, 2))] = data.draw(st.lists(WORDS, max_size=2))
        words = words or ["MARKOV"]
    survives(tmp_path_factory.getbasetemp(), " ".join(words).encode())


def test_alarm_is_a_bayesian_network():
    """37 variables, 46 arcs, 509 free parameters, and tables that pyAgrum finds normalised."""
    graph = read_uai(ALARM)
    levels = json.loads(ALARM.with_suffix(".json").read_text())
    assert graph.cards == tuple(len(values) for values in levels.values())
    assert [scope[-1] for scope in graph.scopes] == list(range(37))
    assert sum(len(scope) - 1 for scope in graph.scopes) == 46
    tables = [np.exp(table) for _, table in graph.factors()]
    assert sum(table[..., 1:].size for table in tables) == 509
    bn = gum.BayesNet()
    for name, values in levels.items():
        bn.add(gum.LabelizedVariable(name, name, values))
    names = list(levels)
    for (*parents, child), table in zip(graph.scopes, tables, strict=True):
        for parent in parents:
            bn.addArc(names[parent], names[child])
        np.testing.assert_allclose(table.sum(axis=-1), 1, rtol=1e-14)
        for at in np.ndindex(table.shape):
            place = dict(zip((names[v] for v in (*parents, child)), map(int, at), strict=True))
            bn.cpt(names[child])[place] = float(table[at])
    assert bn.check() == ()
    assert (bn.size(), bn.sizeArcs(), bn.dim()) == (37, 46, 509)
    bayesian_network(graph.cards, [s[:-1] for s in graph.scopes], tables, names)
