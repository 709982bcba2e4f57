"""Input that nobody should give is one clear line, before anything is computed or taken."""

import json
import shutil
import signal
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import natgfn as ng
from natgfn import NatgfnError, dag, memory
from natgfn.check import check_environment
from natgfn.cli import app
from natgfn.envs import Hypergrid
from natgfn.metrics import expected_log_reward, jensen_shannon, kl_divergence, modes_found
from natgfn.training import Record, interrupt, loop, read_settings, setup_from


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ("batch=1000000000", "trajectories of up to 15 steps would take at least"),
        ("batch=1000000", "the Gram matrix of batch=1,000,000 would take at least"),
        ("policy=network policy.width=1000000000", "1 seeds would take at least"),
        ("policy=network policy.depth=1000000", "depth must be at most 1,000"),
        ("seeds=1000000000", "1,000,000,000 seeds would take at least"),
        ("updates=1000000000000000000", "updates must be at most 2,147,483,647"),
        ("seed=99999999999999999999", "seed must be at most 4,294,967,295"),
        ("env.dims=1000000000", "children of a state would take at least"),
        ("env.dims=1000000000000", "dims must be at most"),
        ("env.side=100000000 enumerate=false", "steps would take at least"),
        ("source=replay source.capacity=10000000000", "capacity must be at most"),
        ("source=replay source.capacity=2000000000 enumerate=false", "memory of 1 seeds"),
        ("max_states=1000000000000", "max_states must be at most"),
        ("evaluate_every=1000000000000", "evaluate_every must be at most"),
        (f"updates={'1' * 5000}", "a number with too many digits"),
        (f"updates={'[' * 2000}", "too deep"),
    ],
)
def test_oversized_numbers_are_refused_before_memory_is_taken(settings, told, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2.0**32)
    result = CliRunner().invoke(app, ["train", "env=hypergrid", *settings.split()])
    assert result.exit_code == 2
    assert told in result.output
    assert result.output.count("\n") == 1


def test_memory_that_is_not_there_is_said_in_gigabytes():
    assert 0 < memory.available() < 2**50
    with pytest.raises(ValueError, match=r"a cube would take at least 1,048,576 GB .* be smaller"):
        memory.require_memory("a cube", 2.0**50, "be smaller")
    memory.require_memory("a dot", 1.0, "be smaller")


def test_a_usual_run_asks_for_little_memory(monkeypatch):
    """The estimate is a lower bound: it never refuses what would have fitted."""
    monkeypatch.setattr(memory, "available", lambda: 3.0 * 2**20)
    setup = setup_from(read_settings(None, ["env=hypergrid", "env.side=16", "seeds=3"]))
    ng.training.decide(setup)


@pytest.mark.parametrize(
    "metric",
    [
        *(kl_divergence, jensen_shannon, expected_log_reward),
        lambda q, p: kl_divergence(p, q),
        lambda q, p: modes_found(q, p, p > 0.4),
    ],
)
def test_a_law_that_is_not_known_has_no_metrics(metric):
    """A NaN compares as false, which would make a plausible number of it."""
    p = jnp.array([0.5, 0.5])
    assert not np.isnan(metric(p, p))
    for q in (jnp.array([jnp.nan, 0.5]), jnp.array([jnp.nan, jnp.nan])):
        assert np.isnan(metric(q, p))


def test_numbers_that_are_not_known_are_counted_and_said():
    line = {"step": 0, "seconds": 0.0, "rejected": [0, 0], "kl": [np.nan, 1.0]}
    lines = [line, line | {"step": 1, "tv": [np.nan, np.nan]}]
    assert ng.training.record.unknown_in(lines) == {"kl": 2, "tv": 2}
    header = {"configuration": {"updates": 1}}
    (remark,) = ng.training.subject_from(header, lines, "a run").remarks
    assert remark == "4 numbers of the record are NaN; by name: kl 2, tv 2."


class ZeroReward(Hypergrid):
    def log_reward(self, state):
        return jnp.where(jnp.sum(state.cell) == 2, -jnp.inf, super().log_reward(state))


class HugeReward(Hypergrid):
    def log_reward(self, state):
        return 1e30 * super().log_reward(state)


class RandomReward(Hypergrid):
    def log_reward(self, state):
        return super().log_reward(state) + float(np.random.default_rng().uniform())


class RandomObservation(Hypergrid):
    def observe(self, state):
        noise = jax.pure_callback(
            lambda x: np.random.default_rng().uniform(size=x.shape).astype(np.float32),
            jax.ShapeDtypeStruct((2 * self.side,), np.float32),
            super().observe(state),
            vmap_method="expand_dims",
        )
        return super().observe(state) + noise


class BlindSpot(Hypergrid):
    def observe(self, state):
        return jnp.where(jnp.sum(state.cell) == 2, jnp.nan, super().observe(state))


class HalfActions(Hypergrid):
    @property
    def num_actions(self):
        return 3.0


class EndlessSteps(Hypergrid):
    @property
    def max_steps(self):
        return 2**31 - 2


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ZeroReward, "have reward zero, among them"),
        (HugeReward, "in single precision, numbers beyond 1,048,576 in size"),
        (RandomReward, "log_reward is not deterministic"),
        (RandomObservation, "observe is not deterministic"),
        (BlindSpot, "observe is not finite in"),
        (HalfActions, "num_actions must be a whole number, got 3.0"),
    ],
)
def test_check_notices_what_train_would_trip_over(kind, told, listed):
    found = check_environment(kind(side=3), max_states=2**18 if listed else 5)
    assert [told in finding.message for finding in found if finding.ok is False] == [True]


def test_check_takes_no_more_memory_than_there_is(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2.0**32)
    *_, last = check_environment(EndlessSteps(side=3), max_states=5)
    assert last.ok is False
    assert "a trajectory of up to max_steps=2,147,483,646 would take at least" in last.message


@pytest.mark.parametrize(
    "column",
    [[1e308, 3, 4, 7, 1], [1e308, -1e308, 3e307, 4, 7], [1e-310, 2e-310, 3e-310, 4e-310, 0]],
)
def test_very_large_and_very_small_columns_are_standardised(column):
    """Without overflow: as the same numbers in another unit would be."""
    small = np.ldexp(np.array(column), -1000 if max(column) > 1 else 1000)
    table = np.stack([np.array(column), np.arange(5.0)], axis=1)
    values = dag.load(table).values
    expected = (small - small.mean()) / small.std()
    np.testing.assert_allclose(values[:, 0], expected, atol=1e-12)
    assert np.isfinite(dag.exact_posterior(table).edge_marginals.to_numpy()).all()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda t: dag.load(t * 1e200, standardise=False), "column 'X0' has a value of size"),
        (lambda t: dag.exact_posterior(t, temperature=1e308), "temperature must be positive and"),
        (lambda _: dag.Prior(edge_penalty=-1e308), "edge_penalty must be finite, at most 1e"),
        (lambda _: dag.priors._mask(("a", "b"), iter(["a->b"])), r"a pair of names, .* 'a->b'"),
    ],
)
def test_what_scores_cannot_hold_is_refused(call, told):
    with pytest.raises((ValueError, NatgfnError), match=told):
        call(np.random.default_rng(0).normal(size=(9, 2)))


@pytest.mark.parametrize("line", ["[1]", "3", "{}", '{"step": "a"}', '{"step": 1, "seconds": 0}'])
def test_a_record_with_lines_of_something_else_is_refused(line, tmp_path):
    with pytest.raises(NatgfnError, match=r"line 3 of .* is not an evaluation"):
        read_with(line, tmp_path)


@pytest.mark.parametrize("line", ["9" * 5000, "[" * 5000, '{"step": 1, "sec'])
def test_a_record_ends_where_it_cannot_be_read(line, tmp_path):
    assert [line["step"] for line in read_with(line, tmp_path)] == [0]


def read_with(line, tmp_path):
    path = tmp_path / "record.jsonl"
    good = {"step": 0, "seconds": 0.0, "rejected": [0]}
    path.write_text("\n".join([json.dumps({"configuration": {}}), json.dumps(good), line, ""]))
    return Record(path).read()[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    run = ng.train(Hypergrid(side=3), updates=4, evaluate_every=2, out=folder, progress=False)
    return folder, run


def resumed(folder):
    return ng.train(
        Hypergrid(side=3), updates=4, evaluate_every=2, out=folder, resume=True, progress=False
    )


@pytest.fixture
def copy(trained, tmp_path):
    return shutil.copytree(trained[0], tmp_path / "run")


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path):
    path.write_bytes(path.read_bytes()[:1000])


def poison(path):
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = next(name for name in arrays if "log_z" in name)
    arrays[name] = np.full_like(arrays[name], np.nan)
    np.savez(path, **arrays)


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", b"\0" * 2**24)


def absurd(path):
    with zipfile.ZipFile(path, "w") as file, file.open("header.npy", "w") as member:
        header = {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
        np.lib.format.write_array_header_1_0(member, header)


@pytest.mark.parametrize("damage", [flip, cut, poison, bomb, absurd])
def test_after_damage_the_last_good_checkpoint_is_used(damage, copy, trained):
    damage(copy / "checkpoint.npz")
    again = resumed(copy)
    same = jax.tree.map(
        np.array_equal, *(eqx.filter(run.state, eqx.is_array) for run in (again, trained[1]))
    )
    assert all(jax.tree.leaves(same))
    damage(copy / "checkpoint.npz")
    damage(copy / "checkpoint.earlier.npz")
    with pytest.raises(NatgfnError, match=r"not a (whole|natgfn) checkpoint|not finite"):
        resumed(copy)


def test_a_checkpoint_that_is_between_two_names_is_found(copy, trained):
    """A process that is killed between the two renamings of a file leaves the earlier one."""
    (copy / "checkpoint.npz").unlink()
    assert resumed(copy).history[-1]["kl"] == trained[1].history[-1]["kl"]
    with pytest.raises(NatgfnError, match="already holds a run"):
        ng.train(Hypergrid(side=3), updates=4, evaluate_every=2, out=copy, progress=False)


def test_a_damaged_checkpoint_is_said(copy, capsys):
    flip(copy / "checkpoint.npz")
    ng.train(Hypergrid(side=3), updates=4, evaluate_every=2, out=copy, resume=True)
    out = " ".join(capsys.readouterr().out.split())
    assert "not a whole checkpoint" in out
    assert "going on from the one before, update 2" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_until_what_was_computed_is_saved(number, tmp_path, monkeypatch):
    """It comes in the middle of the second chunk, where a callback of JAX would swallow it."""
    advance, calls = loop.advance, iter(range(9))

    def in_the_middle(*arguments):
        if next(calls) == 1:
            signal.raise_signal(number)
        return advance(*arguments)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "advance", in_the_middle)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            ng.train(Hypergrid(side=3), updates=6, evaluate_every=2, out=tmp_path, progress=False)
        assert signal.getsignal(number) is stop
    finally:
        signal.signal(number, before)
    assert [line["step"] for line in Record(tmp_path / "record.jsonl").read()[1]] == [0, 2, 4]


def test_a_second_signal_is_not_held_back():
    passed = []

    def twice() -> None:
        with interrupt.deferred(True):
            for number in range(2):
                signal.raise_signal(signal.SIGTERM)
                passed.append(number)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            twice()
        assert passed == [0]
    finally:
        signal.signal(signal.SIGTERM, before)
