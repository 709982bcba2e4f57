"""Sequences over an alphabet: sound however they are built, with the rewards of their table."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from natgfn.check import check_environment
from natgfn.envs import (
    AppendedSequences,
    ExtendedSequences,
    FilledSequences,
    QM9Small,
    Sequence,
    TFBind8,
)
from natgfn.errors import NatgfnError
from natgfn.statespace import enumerate_states

TABLE = np.random.default_rng(0).uniform(0.5, 2, 27)
STATES = {
    # All strings of up to three letters; all substrings too; three letters or none in each place.
    AppendedSequences: 1 + 3 + 9 + 27,
    ExtendedSequences: 1 + 3 + 9 + 27,
    FilledSequences: 4**3,
}


@pytest.mark.parametrize("kind", STATES)
def test_every_way_to_build_them_is_sound(kind):
    env = kind(TABLE, letters=3)
    space = enumerate_states(env)
    assert (space.num_states, space.num_terminal) == (STATES[kind], 27)
    assert all(finding.ok is not False for finding in check_environment(env))
    found = np.asarray(space.states.letters)[space.num_inner :]
    order = found @ [9, 3, 1]
    np.testing.assert_allclose(space.log_rewards, np.log(TABLE[order]), rtol=1e-6)


def test_a_sequence_can_be_extended_at_either_end():
    env = ExtendedSequences(TABLE, letters=3)
    state = env.init()
    for action in (1, 3 + 2, 0):  # 1, then 2 before it, then 0 after it
        assert bool(env.forward_mask(state)[action])
        state = env.step(state, action)
    assert state.letters.tolist() == [2, 1, 0]
    assert np.flatnonzero(env.backward_mask(state)).tolist() == [0, 3 + 2]
    assert env.undo(state, 0).letters.tolist() == [2, 1, 3]
    assert env.undo(state, 3 + 2).letters.tolist() == [1, 0, 3]
    assert not bool(env.forward_mask(env.init())[3:].any())


def test_the_distance_counts_letters():
    env = AppendedSequences(TABLE, letters=3)
    one, other = Sequence(jnp.array([0, 1, 2])), Sequence(jnp.array([0, 2, 1]))
    assert float(env.distance(one, other)) == 2


def test_tfbind8_is_the_target_that_others_use():
    """Its log Z and mean reward under the target, as computed from the public table."""
    rewards = TFBind8().rewards
    assert np.log(rewards.sum()) == pytest.approx(11.46215, abs=1e-5)
    assert rewards @ rewards / rewards.sum() == pytest.approx(3.31995, abs=1e-5)
    env = TFBind8()
    best = int(np.argmax(rewards))
    letters = jnp.asarray(np.array(np.unravel_index(best, (4,) * 8)), jnp.int32)
    assert env.max_steps == 8
    assert float(jax.jit(env.log_reward)(Sequence(letters))) == pytest.approx(np.log(10), abs=1e-6)


def test_qm9_small_reads_its_table(tmp_path: Path):
    scores = np.random.default_rng(1).normal(size=11**5)
    path = tmp_path / "table.npz"
    np.savez(path, reward=scores)
    env = QM9Small(str(path))
    assert env.max_steps == 5
    assert env.rewards.max() == pytest.approx(100)
    low = 100 * (1e-3 / scores.max()) ** 5
    assert env.rewards.min() == pytest.approx(low)


def test_bad_tables_get_one_line(tmp_path: Path):
    with pytest.raises(ValueError, match=r"table must have a power of letters=3 rewards, got 26"):
        AppendedSequences(TABLE[:26], letters=3)
    with pytest.raises(ValueError, match="letters must be at least 2, got 1"):
        AppendedSequences(TABLE, letters=1)
    with pytest.raises(ValueError, match="positive and finite"):
        FilledSequences(np.array([1.0, 0.0]))
    with pytest.raises(NatgfnError, match=r"cannot read .*none\.npz"):
        QM9Small(str(tmp_path / "none.npz")).max_steps  # noqa: B018
    np.savez(tmp_path / "few.npz", reward=np.ones(3))
    with pytest.raises(NatgfnError, match="expected 161,051 finite numbers"):
        QM9Small(str(tmp_path / "few.npz")).max_steps  # noqa: B018
