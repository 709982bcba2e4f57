"""What is on disk survives: kills, full disks, and other people's files."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import natgfn as ng
from natgfn import NatgfnError
from natgfn.optim import Euclidean
from natgfn.training import Record, Setup, checkpoint, describe, prolong

pytestmark = pytest.mark.trains  # compiled as in the processes that tests here start and kill

CONFIGURATION = {"env": "somewhere", "updates": 3}


class State(eqx.Module):
    """Every kind of array that a training state has."""

    table: jax.Array
    nested: dict[str, jax.Array]
    key: jax.Array
    step: jax.Array
    name: str = "not an array"


def make_state(seed: int = 0) -> State:
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(3, 5)).astype(np.float32)
    table[0, :4] = np.nan, np.inf, -0.0, 1e-42
    key = jax.random.key_data(jax.random.key(seed))
    nested = {"mu": jnp.asarray(rng.normal(size=4), jnp.float32), "flag": jnp.array([True, False])}
    return State(jnp.asarray(table), nested, key, jnp.array(seed + 3))


def bits(tree) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "checkpoint.npz"
    checkpoint.save(path, make_state(1), CONFIGURATION)
    return path


def test_a_state_comes_back_bit_by_bit(saved):
    """NaN, infinity, minus zero, subnormals, integers, booleans and all."""
    restored = checkpoint.load(saved, make_state(2), CONFIGURATION)
    assert bits(restored) == bits(make_state(1)) != bits(make_state(2))
    assert [x.dtype for x in jax.tree.leaves(eqx.filter(restored, eqx.is_array))] == [
        x.dtype for x in jax.tree.leaves(eqx.filter(make_state(), eqx.is_array))
    ]
    assert restored.name == "not an array"
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_truncated_checkpoint_is_refused_at_whatever_length(saved):
    whole = saved.read_bytes()
    for length in [0, 1, 3, 10, 200, *range(300, len(whole), 211), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(NatgfnError, match="not a whole checkpoint"):
            checkpoint.load(saved, make_state(), CONFIGURATION)


def test_a_damaged_checkpoint_is_refused_or_unharmed(saved):
    """One byte changed anywhere: never a wrong state, and never another kind of error."""
    whole, refused = saved.read_bytes(), 0
    for place in np.random.default_rng(0).choice(len(whole), 250, replace=False):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        saved.write_bytes(damaged)
        try:
            assert bits(checkpoint.load(saved, make_state(), CONFIGURATION)) == bits(make_state(1))
        except NatgfnError:
            refused += 1
    assert refused > 150


def write_text(path):
    path.write_text("hello\n")


def write_zip(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header", "hello")


def write_other_arrays(path):
    np.savez(path, a=np.zeros(3))


def write_one_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def write_other_header(path):
    np.savez(path, header=np.array(["natgfn-checkpoint-0", "0"]))


class Bomb:
    """Running this when it is unpickled leaves a trace."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def write_pickle(path):
    np.savez(path, header=np.array([Bomb(path.with_name("exploded"))], dtype=object))


@pytest.mark.parametrize(
    "write",
    [write_text, write_zip, write_other_arrays, write_one_array, write_other_header, write_pickle],
)
def test_foreign_files_are_refused(tmp_path, write):
    path = tmp_path / "checkpoint.npz"
    write(path)
    with pytest.raises(NatgfnError, match=r"not a (whole|natgfn) checkpoint"):
        checkpoint.load(path, make_state(), CONFIGURATION)
    assert not (tmp_path / "exploded").exists()


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(NatgfnError, match=r"no checkpoint at .*nowhere\.npz"):
        checkpoint.load(tmp_path / "nowhere.npz", make_state(), CONFIGURATION)


def test_a_checkpoint_of_another_configuration_is_refused(saved):
    with pytest.raises(NatgfnError, match="belongs to another configuration"):
        checkpoint.load(saved, make_state(), {**CONFIGURATION, "updates": 4})
    # The order of the entries is not part of a configuration.
    reordered = dict(reversed(CONFIGURATION.items()))
    assert bits(checkpoint.load(saved, make_state(), reordered)) == bits(make_state(1))


def test_a_checkpoint_of_other_arrays_is_refused(saved):
    more = eqx.tree_at(lambda s: s.nested, make_state(), {"mu": jnp.zeros(4)})
    with pytest.raises(NatgfnError, match="holds other arrays"):
        checkpoint.load(saved, more, CONFIGURATION)
    longer = eqx.tree_at(lambda s: s.nested["mu"], make_state(), jnp.zeros(5))
    with pytest.raises(NatgfnError, match=r"mu.* has shape \(4,\) .* expected \(5,\)"):
        checkpoint.load(saved, longer, CONFIGURATION)
    counted = eqx.tree_at(lambda s: s.nested["mu"], make_state(), jnp.zeros(4, int))
    with pytest.raises(NatgfnError, match=r"type float32, expected .* int32"):
        checkpoint.load(saved, counted, CONFIGURATION)


def test_a_full_disk_leaves_the_last_good_checkpoint(saved):
    """The kernel's own ENOSPC: the partial file is a link to /dev/full."""
    saved.with_name(saved.name + ".partial").symlink_to("/dev/full")
    with pytest.raises(NatgfnError, match=r"No space left on device.* is unchanged") as caught:
        checkpoint.save(saved, make_state(2), CONFIGURATION)
    assert "\n" not in str(caught.value)
    assert bits(checkpoint.load(saved, make_state(), CONFIGURATION)) == bits(make_state(1))
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_disk_that_fills_up_at_the_last_moment_leaves_the_last_good_checkpoint(
    saved, monkeypatch
):
    def fsync(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(NatgfnError, match="No space left on device"):
        checkpoint.save(saved, make_state(2), CONFIGURATION)
    assert bits(checkpoint.load(saved, make_state(), CONFIGURATION)) == bits(make_state(1))


def test_the_first_checkpoint_that_fails_promises_nothing(tmp_path):
    with pytest.raises(NatgfnError, match="cannot write a checkpoint") as caught:
        checkpoint.save(tmp_path / "missing" / "checkpoint.npz", make_state(), CONFIGURATION)
    assert "unchanged" not in str(caught.value)


# Whole runs.

# As fast to compile as can be; slow enough on disk to be killed in the middle.
RUN = {"batch": 4, "updates": 300, "seeds": 2, "evaluate_every": 5, "progress": False}


def train(out, **options):
    return ng.train(ng.envs.Hypergrid(side=2), Euclidean(), out=out, **(RUN | options))


def lines(folder: Path) -> list[dict]:
    """The record, without what a clock says."""
    found = [json.loads(line) for line in (folder / "record.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in found[1:]]


def arrays(folder: Path) -> dict[str, bytes]:
    with np.load(folder / "checkpoint.npz") as file:
        return {name: file[name].tobytes() for name in file.files}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run that nothing happened to."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(out)
    return out


@pytest.fixture
def folder(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def check_same(folder: Path, finished: Path) -> None:
    assert arrays(folder) == arrays(finished)
    assert lines(folder) == lines(finished)


def test_a_run_killed_in_the_middle_resumes_to_the_same_end(finished, tmp_path):
    """SIGKILL, at a moment that nobody chose; then bit by bit as if nothing had happened."""
    out = tmp_path / "killed"
    script = f"""
        import natgfn as ng
        ng.train(ng.envs.Hypergrid(side=2), ng.optim.Euclidean(), out={str(out)!r}, **{RUN!r})
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    try:
        record = out / "record.jsonl"
        deadline = time.monotonic() + 120
        while not record.exists() or record.read_bytes().count(b"\n") < 6:
            assert process.poll() is None, "it ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    assert 4 <= len(lines(out)) < len(lines(finished))
    resumed = train(out, resume=True)
    check_same(out, finished)
    assert resumed.steps.tolist() == list(range(0, 301, 5))


def test_a_finished_run_resumes_to_itself(folder, finished):
    run = train(folder, resume=True)
    check_same(folder, finished)
    assert len(run.history) == 61


def stop_at(folder: Path, step: int) -> None:
    """Bring a folder back to an earlier checkpoint, as a crash would have left it."""
    shutil.rmtree(folder)
    fail_after = iter(range(step // 5 + 1))
    save = checkpoint.save

    def failing(*args, **options):
        if next(fail_after, None) is None:
            raise NatgfnError("stopped here")
        save(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", failing)
        with pytest.raises(NatgfnError, match="stopped here"):
            train(folder)


def test_a_line_of_the_record_beyond_the_checkpoint_is_written_again(folder, finished):
    """A crash between the two writes: the record is one evaluation ahead."""
    stop_at(folder, 20)
    assert lines(folder)[-1]["step"] == 25
    train(folder, resume=True)
    check_same(folder, finished)


def test_a_record_cut_off_in_the_middle_of_a_line_is_mended(folder, finished):
    stop_at(folder, 20)
    record = folder / "record.jsonl"
    record.write_bytes(record.read_bytes()[:-40])
    train(folder, resume=True)
    check_same(folder, finished)


def test_a_record_that_lags_behind_its_checkpoint_is_refused(folder):
    """Going on from it would repeat updates that the checkpoint already has."""
    record = folder / "record.jsonl"
    record.write_text("".join(record.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(NatgfnError, match="stops at step 290, before its checkpoint"):
        train(folder, resume=True)


@pytest.mark.parametrize("again", [False, True])
def test_a_run_goes_on_as_a_longer_one(finished, tmp_path, again):
    """As if it had been as long from the start: no rate of it knows how long it is."""
    out, settings = tmp_path / "longer", {k: v for k, v in RUN.items() if k != "progress"}
    train(out, updates=100)
    kept = lines(out)
    with pytest.raises(NatgfnError, match="belongs to another configuration"):
        train(out, resume=True)
    for updates in (200, 300) if again else (300,):  # nothing is made in between
        setup = Setup(ng.envs.Hypergrid(side=2), Euclidean(), **settings | {"updates": updates})
        prolong(out, setup)
        assert lines(out) == kept
    train(out, resume=True)
    check_same(out, finished)
    train(out, resume=True)  # from a checkpoint of its own
    check_same(out, finished)


@pytest.mark.parametrize("continues", [5, [], ["0123456789abcdef", None]])
def test_a_checkpoint_that_a_record_does_not_name_is_refused(folder, continues):
    header, *rest = (folder / "record.jsonl").read_text().splitlines()
    header = json.dumps(json.loads(header) | {"continues": continues})
    (folder / "record.jsonl").write_text("\n".join([header, *rest]) + "\n")
    with pytest.raises(NatgfnError, match="belongs to another configuration"):
        train(folder, resume=True, updates=310)


@pytest.mark.parametrize("text", ["", "5\n", "[]\n", '{"step": 0}\n', "\xff\n"])
def test_a_record_of_something_else_is_refused(folder, text):
    (folder / "record.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(NatgfnError, match=r"record\.jsonl"):
        train(folder, resume=True)


def test_rewinding_on_a_full_disk_leaves_the_record(folder):
    before = (folder / "record.jsonl").read_bytes()
    (folder / "record.jsonl.partial").symlink_to("/dev/full")
    with pytest.raises(NatgfnError, match="cannot write the record"):
        Record(folder / "record.jsonl").rewind(300)
    assert (folder / "record.jsonl").read_bytes() == before


def test_a_run_does_not_overwrite_another(folder, finished):
    with pytest.raises(NatgfnError, match="already holds a run: resume it, or choose another"):
        train(folder)
    check_same(folder, finished)


def test_resuming_with_other_settings_is_refused(folder, finished):
    with pytest.raises(NatgfnError, match="belongs to another configuration"):
        train(folder, resume=True, batch=5)
    check_same(folder, finished)


def test_truncated_checkpoints_stop_the_run_that_resumes_them(folder):
    for path in folder.glob("checkpoint*.npz"):
        path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(NatgfnError, match="not a whole checkpoint"):
        train(folder, resume=True)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(NatgfnError, match=r"cannot make the folder .*taken"):
        train(tmp_path / "taken")


def test_a_record_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "record.jsonl").mkdir()
    with pytest.raises(NatgfnError, match=r"cannot write the record .*record\.jsonl"):
        train(tmp_path)


def test_a_full_disk_in_the_middle_of_a_run_keeps_what_was_done(folder, finished):
    """The run stops with one clear line, and goes on when there is space again."""
    shutil.rmtree(folder)
    calls = iter(range(6))
    fsync = os.fsync

    def full(descriptor):
        if next(calls, None) is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(NatgfnError, match="No space left on device"):
            train(folder)
    assert (folder / "checkpoint.npz").exists()
    train(folder, resume=True)
    check_same(folder, finished)


def test_the_record_says_what_was_run_and_with_what(finished):
    header = json.loads((finished / "record.jsonl").read_text().splitlines()[0])
    assert header["configuration"]["rule"] == describe(Euclidean())
    assert header["configuration"]["updates"] == 300
    assert header["versions"]["jax"] == jax.__version__
    assert {"natgfn", "numpy", "python", "device"} <= header["versions"].keys()


def test_a_folder_belongs_to_one_process_at_a_time(tmp_path):
    code = f"""
        import sys
        from pathlib import Path
        from natgfn.training import locked
        with locked(Path({str(tmp_path)!r})):
            print("mine", flush=True)
            sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "mine\n"
        run = {"updates": 1, "batch": 2, "progress": False, "out": tmp_path}
        with pytest.raises(NatgfnError, match="in use by another process"):
            ng.train(ng.envs.Hypergrid(side=3), **run)
        assert not (tmp_path / "record.jsonl").exists()
    finally:
        other.kill()  # as a crash would: the folder is free again
        other.communicate()
    ng.train(ng.envs.Hypergrid(side=3), **run)
