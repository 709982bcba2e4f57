"""Tables become data, or one line that says what to mend."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from natgfn import NatgfnError
from natgfn.dag import CONSENSUS, Data, adjacency, graphs, load, read_csv, sachs


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_file_a_frame_and_a_matrix_give_the_same_data(tmp_path: Path):
    path = write(tmp_path / "t.csv", "a, b", "1, 2", "2,5e0", '"4",3')
    frame = pd.DataFrame({"a": [1, 2, 4], "b": [2.0, 5, 3]})
    for table in (path, str(path), frame):
        data = load(table, standardise=False)
        assert data.names == ("a", "b")
        np.testing.assert_array_equal(data.values, [[1, 2], [2, 5], [4, 3]])
    matrix = load(frame.to_numpy(), standardise=False)
    assert matrix.names == ("X0", "X1")
    np.testing.assert_array_equal(matrix.values, data.values)


def test_logarithms_then_standardised_with_one_over_n():
    values = np.exp([[0.0, 3.0], [2.0, 4.0], [4.0, 8.0]])
    data = load(values, log=True)
    np.testing.assert_allclose(data.values.mean(axis=0), 0, atol=1e-15)
    np.testing.assert_allclose((data.values**2).mean(axis=0), 1)
    assert data.values[2, 0] == pytest.approx(1.5**0.5)


def test_discrete_values_are_levels(tmp_path: Path):
    path = write(tmp_path / "t.csv", "a,b", "yes,1", "no,2", "yes,1", "no,2", "yes,2")
    data = load(path, discrete=True)
    assert data.discrete
    np.testing.assert_array_equal(data.values, [[1, 0], [0, 1], [1, 0], [0, 1], [1, 1]])


GOOD = ("1,2", "2,3", "3,5")
FILES = {
    "constant": (("a,b", "1,2", "1,3", "1,4"), {}, ("'a' is constant", "remove it")),
    "missing": (("a,b", "1,2", "3,", "4,5"), {}, ("'b' has 1 missing", "row 2", "remove their")),
    "NaN": (("a,b", "1,2", "NaN,5", "4,5"), {}, ("'a' has 1 missing", "row 2")),
    "text": (("a,b", "1,2", "3,low", "4,5"), {}, ("'b' has 'low' in row 2", "--discrete")),
    "infinite": (("a,b", "1,2", "3,inf", "4,5"), {}, ("'b' has 'inf' in row 2", "a number")),
    "few rows": (("a,b,c", "1,2,3", "4,5,7"), {}, ("2 rows and 3 columns", "more data")),
    "only names": (("a,b",), {}, ("0 rows and 2 columns",)),
    "duplicate": (("a,a", *GOOD), {}, ("different names", "'a' twice")),
    "one column": (("a;b", "1;2", "2;3"), {}, ("has one column", "at least 2", "commas")),
    "ragged": (("a,b", "1,2", "2,3,4"), {}, ("not a CSV file", "line 3")),
    "no names": (GOOD, {}, ("first line", "numbers", "expected names")),
    "row numbers": ((",a,b", "1,1,2", "2,4,5", "3,3,1"), {}, ("column 1", "has no name")),
    "negative": (("a,b", "1,2", "-3,4", "4,5"), {"log": True}, ("'a' has a value -3", "positive")),
    "not discrete": (("a,b", *GOOD), {"discrete": True}, ("3 levels in 3 rows", "--discrete")),
    "mixed": (
        ("a,b", "low,1.5", "high,2.5", "low,3.5"),
        {},
        ("'a' is text and column 'b' has numbers", "use --discrete, or leave out one kind"),
    ),
    "mixed levels": (
        ("a,b", "low,1.5", "high,2.5", "low,3.5"),
        {"discrete": True},
        ("'a' is text and column 'b' has numbers", "either continuous or discrete"),
    ),
    "both": (("a,b", *GOOD), {"discrete": True, "log": True}, ("drop --log or --discrete",)),
    "empty": ((), {}, ("not a CSV file",)),
}


@pytest.mark.parametrize("name", FILES)
def test_a_table_that_cannot_be_used_gets_one_clear_line(tmp_path: Path, name: str):
    lines, options, words = FILES[name]
    path = write(tmp_path / "t.csv", *lines)
    with pytest.raises(NatgfnError) as error:
        load(path, **options)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_not_text_or_not_there(tmp_path: Path):
    (tmp_path / "t.csv").write_bytes(b"\x80\x04\x95" + bytes(range(256)))
    with pytest.raises(NatgfnError, match="not a CSV file"):
        read_csv(tmp_path / "t.csv")
    with pytest.raises(NatgfnError, match=r"cannot read .*missing\.csv: No such file"):
        load(tmp_path / "missing.csv")
    with pytest.raises(NatgfnError, match="cannot read"):
        load(tmp_path)


def test_frames_are_checked_too():
    with pytest.raises(NatgfnError, match="'b' has 1 missing values, the first in row 3"):
        load(pd.DataFrame({"a": [1.0, 2, 3], "b": [1.0, 2, np.nan]}))
    with pytest.raises(NatgfnError, match="'b' has 'x' in row 1"):
        load(pd.DataFrame({"a": [1.0, 2], "b": ["x", "y"]}))
    with pytest.raises(ValueError, match="expected 2 names"):
        Data(("a",), np.eye(2))


def test_the_sachs_data_and_its_consensus():
    table = sachs()
    assert table.shape == (853, 11)
    assert " ".join(table.columns) == "Raf Mek Plcg PIP2 PIP3 Erk Akt PKA PKC P38 Jnk"
    assert table.iloc[0].tolist() == [26.4, 13.2, 8.82, 18.3, 58.8, 6.61, 17, 414, 17, 44.9, 40]
    assert table.to_numpy().min() == 1.0
    graph = adjacency(table.columns, CONSENSUS)
    assert graph.sum() == len(set(CONSENSUS)) == 17
    assert graph[0, 1] == 1  # Raf -> Mek
    assert graphs.is_acyclic(graph[None]).all()
