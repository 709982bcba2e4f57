"""Runs packed into one file: they go on to the same end, and nothing else is unpacked."""

import json
import shutil
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest

from natgfn import NatgfnError
from natgfn.dag import Transformer
from natgfn.envs import Hypergrid
from natgfn.optim import Adam
from natgfn.training import Record, Setup, run
from paper import checkpoints
from paper.checkpoints import pack, unpack
from paper.experiments import continuation, dag_sachs, reproduce
from paper.experiments.continuation import ADAM, CONTROLLED, METHODS


def leaves(state) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)]


@pytest.mark.slow
def test_an_unpacked_run_goes_on_to_the_same_end(tmp_path: Path):
    setup = Setup(Hypergrid(side=3), Adam(), batch=4, updates=6, evaluate_every=3)
    whole = run(setup, out=tmp_path / "whole", progress=False)
    cut = run(setup, out=tmp_path / "cut", seconds=1e-9, progress=False)
    assert int(cut.state.step[0]) == 3
    pack(tmp_path / "cut", tmp_path / "kept" / "cut.zip")
    first = (tmp_path / "kept" / "cut.zip").read_bytes()
    pack(tmp_path / "cut", tmp_path / "kept" / "cut.zip")
    assert (tmp_path / "kept" / "cut.zip").read_bytes() == first  # no times in it
    unpack(tmp_path / "kept" / "cut.zip", tmp_path / "again")
    again = run(setup, out=tmp_path / "again", resume=True, progress=False)
    for one, other in zip(leaves(again.state), leaves(whole.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [line["step"] for line in again.history] == [0, 3, 6]


@pytest.mark.parametrize("member", ["../elsewhere", "other.txt"])
def test_an_archive_with_anything_else_is_refused(tmp_path: Path, member: str):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("record.jsonl", "{}")
        archive.writestr(member, "x")
    with pytest.raises(NatgfnError, match="not a packed run"):
        unpack(tmp_path / "bad.zip", tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip"]


def test_damaged_and_overlarge_archives_are_refused(tmp_path: Path, monkeypatch):
    folder, path = tmp_path / "run", tmp_path / "run.zip"
    folder.mkdir()
    (folder / "record.jsonl").write_bytes(bytes(10_000))
    pack(folder, path)
    assert path.stat().st_size < 1_000
    unpack(path, tmp_path / "copy")
    assert (tmp_path / "copy" / "record.jsonl").read_bytes() == bytes(10_000)
    monkeypatch.setattr(checkpoints, "LARGEST_INSIDE", 9_999)
    with pytest.raises(NatgfnError, match="something else"):
        unpack(path, tmp_path / "again")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(NatgfnError, match="not a packed run"):
        unpack(path, tmp_path / "again")
    monkeypatch.setattr(checkpoints, "LARGEST", 20)
    with pytest.raises(NatgfnError, match="more than the 20"):
        pack(folder, path)
    assert path.stat().st_size == 40  # what was there is unchanged
    assert not (tmp_path / "again").exists()


@pytest.mark.slow
def test_a_fresh_clone_goes_on_from_the_packed_warm_up(tmp_path: Path, monkeypatch):
    """Even where another processor has rounded the scores another way."""
    small = Transformer(width=8, depth=1, heads=2, feed=8)
    monkeypatch.setitem(continuation.NETWORKS, "Transformer", small)
    monkeypatch.setattr(continuation, "METHODS", {name: METHODS[name] for name in (ADAM,)})
    reproduce("dag-sachs", out=tmp_path, only=("Transformer",))
    kept = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert kept == ["dag-sachs.smoke.Transformer-seed-2001-warm-up.zip"]
    assert f"(checkpoints/{kept[0]})" in (tmp_path / "dag-sachs.smoke.md").read_text()
    results = tmp_path / "dag-sachs.smoke.json"
    before = json.loads(results.read_text())["runs"]
    folder = tmp_path / ".work" / "dag-sachs.smoke" / "Transformer-seed-2001-warm-up"
    _, lines = Record(folder / "record.jsonl").read()

    shutil.rmtree(tmp_path / ".work")
    results.unlink()
    cases = dag_sachs.cases

    def rounded(*how):
        return [case._replace(log_weights=case.log_weights + 1e-13) for case in cases(*how)]

    monkeypatch.setattr(dag_sachs, "cases", rounded)
    monkeypatch.setattr(continuation, "METHODS", {n: METHODS[n] for n in (ADAM, CONTROLLED)})
    reproduce("dag-sachs", out=tmp_path, only=("Transformer",))
    assert Record(folder / "record.jsonl").read()[1] == lines  # with its times: not made again
    after = json.loads(results.read_text())["runs"]
    assert [entry["method"] for entry in after] == [ADAM, CONTROLLED]
    assert after[0]["loss"] == before[0]["loss"]
