"""Bit sequences: strings of characters, compared one by one, are the oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import float64
from scipy.optimize import linear_sum_assignment

import natgfn as ng
from natgfn import NatgfnError
from natgfn.check import check_environment
from natgfn.envs import (
    AppendedBitSequences,
    BitSequences,
    CountsModes,
    HasDistance,
    HasTestSet,
    Sequence,
)
from natgfn.envs.base import ListsObjects, OnGrid
from natgfn.envs.bit_sequences import AbstractBitSequences
from natgfn.statespace import enumerate_states, log_path_counts
from natgfn.training import describe, read_settings, setup_from

PIECES = {"00000000", "11111111", "11110000", "00001111", "00111100"}
FORMS = pytest.mark.parametrize("form", [BitSequences, AppendedBitSequences])


def text(env: AbstractBitSequences, words) -> str:
    return "".join(f"{int(word):0{env.word}b}" for word in words)


def state(env: AbstractBitSequences, bits: str) -> Sequence:
    words = [int(bits[i : i + env.word], 2) for i in range(0, env.length, env.word)]
    return Sequence(jnp.array(words, jnp.int32))


def texts(env: AbstractBitSequences, states: Sequence) -> list[str]:
    return [text(env, words) for words in np.asarray(states.letters)]


def modes(env: AbstractBitSequences) -> list[str]:
    return ["".join(map(str, bits)) for bits in env.mode_bits().tolist()]


def hamming(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    "env",
    [
        BitSequences(8, 4, modes=2),
        AppendedBitSequences(8, 2),
        *(
            pytest.param(env, marks=pytest.mark.slow)
            for env in (
                BitSequences(8, 2),
                BitSequences(8, 8),
                AppendedBitSequences(8, 1),
                AppendedBitSequences(8, 4, seed=3),
                AppendedBitSequences(16, 4),
            )
        ),
    ],
)
def test_both_forms_are_sound(env):
    findings = check_environment(env)
    assert len(findings) == 13
    assert [finding.message for finding in findings if not finding.ok] == []


@pytest.mark.parametrize(
    ("length", "word"),
    [(8, 2), *(pytest.param(8, word, marks=pytest.mark.slow) for word in (1, 4, 8))],
)
def test_the_numbers_of_states_and_paths_are_the_closed_forms(length, word):
    positions = length // word
    fill = enumerate_states(BitSequences(length, word))
    append = enumerate_states(AppendedBitSequences(length, word))
    assert fill.num_states == (2**word + 1) ** positions
    assert append.num_states == sum(2 ** (word * t) for t in range(positions + 1))
    assert fill.num_terminal == append.num_terminal == 2**length
    orders = np.prod(np.arange(1, positions + 1))
    for space, paths in ((fill, orders), (append, 1)):
        counts = np.exp(np.asarray(log_path_counts(space)))[space.num_inner :]
        np.testing.assert_allclose(counts, paths, rtol=1e-4)


def test_the_published_task_has_its_published_sizes():
    fill, append = BitSequences(), AppendedBitSequences()
    assert (fill.num_actions, fill.max_steps, fill.num_modes) == (3840, 15, 60)
    assert (append.num_actions, append.max_steps, append.num_modes) == (256, 15, 60)
    assert fill.mode_bits().shape == (60, 120)


@FORMS
def test_an_environment_says_what_it_can(form):
    for protocol in (CountsModes, HasDistance, HasTestSet, ListsObjects, OnGrid):
        assert isinstance(form(), protocol)


@pytest.mark.parametrize("seed", [0, 1])
def test_modes_are_rows_of_the_five_pieces(seed):
    found = modes(BitSequences(seed=seed))
    pieces = [mode[i : i + 8] for mode in found for i in range(0, 120, 8)]
    assert set(pieces) == PIECES
    assert len(set(found)) == 60
    assert found == modes(AppendedBitSequences(word=4, seed=seed))
    assert found != modes(BitSequences(seed=seed + 1))


@float64
@given(
    bits=st.integers(0, 2**120 - 1),
    mode=st.integers(0, 59),
    word=st.sampled_from([1, 4, 8, 12]),
    form=st.sampled_from([BitSequences, AppendedBitSequences]),
)
def test_reward_and_modes_found_are_those_of_the_characters(bits, mode, word, form):
    env = form(word=word, exponent=2.5, modes=60)
    near = np.array([c == "1" for c in modes(env)[mode]]) ^ (
        np.random.default_rng(bits).random(120) < 0.25  # about as many as the radius
    )
    for string in (f"{bits:0120b}", "".join("01"[int(bit)] for bit in near)):
        distances = [hamming(string, mode) for mode in modes(env)]
        x = state(env, string)
        assert float(env.log_reward(x)) == pytest.approx(-2.5 * min(distances) / 120, rel=1e-14)
        assert env.finds(x).tolist() == [d < 30 for d in distances]


@FORMS
def test_a_mode_is_found_strictly_within_the_radius(form):
    env = form(modes=1)
    mode = modes(env)[0]
    flipped = mode.translate(str.maketrans("01", "10"))
    for flips, default, wide in ((0, True, True), (29, True, True), (30, False, True)):
        x = state(env, flipped[:flips] + mode[flips:])
        assert env.finds(x).tolist() == [default]
        assert form(modes=1, radius=31).finds(x).tolist() == [wide]
        assert float(env.log_reward(x)) == pytest.approx(-3 * flips / 120)


@given(one=st.integers(0, 2**24 - 1), other=st.integers(0, 2**24 - 1))
def test_distance_counts_the_bits_that_differ(one, other):
    env = BitSequences(24, 6)
    a, b = f"{one:024b}", f"{other:024b}"
    assert float(env.distance(state(env, a), state(env, b))) == hamming(a, b)


def test_positions_that_are_empty_cost_nothing_yet():
    env = BitSequences(16, 4, modes=3)
    string = "0110" + "1001" + "0001" + "1110"
    words = state(env, string).letters.at[jnp.array([0, 2])].set(env.num_letters)
    filled = [4, 5, 6, 7, 12, 13, 14, 15]
    least = min(sum(string[i] != mode[i] for i in filled) for mode in modes(env))
    assert float(env.log_partial(Sequence(words))) == pytest.approx(-3 * least / 16)
    assert float(env.log_partial(env.init())) == 0


@FORMS
def test_the_test_set_flips_each_number_of_bits_of_each_mode(form):
    env = form(24, 4, modes=7)
    found = texts(env, env.test_set(7 * 24))
    assert found == texts(env, env.test_set(7 * 24))
    for flips in range(24):
        group = found[7 * flips : 7 * flips + 7]
        # Each string can be given to a mode of its own at exactly this distance.
        at = np.array([[hamming(x, mode) == flips for mode in modes(env)] for x in group])
        assert at[linear_sum_assignment(~at)].all()


def test_a_smaller_test_set_is_spread_over_the_whole():
    env = BitSequences()
    whole, part = texts(env, env.test_set(7200)), texts(env, env.test_set(120))
    assert len(set(whole)) == 7200
    assert part == whole[::60]
    nearest = [np.argmin([hamming(x, mode) for mode in modes(env)]) for x in part[:20]]
    assert len(set(nearest)) > 10


@FORMS
def test_objects_are_all_strings(form):
    env = form(8, 2)
    assert texts(env, env.objects()) == [f"{number:08b}" for number in range(256)]
    with pytest.raises(ValueError, match=r"at most 20 to list all objects, got 24$"):
        form(24, 8).objects()


@FORMS
def test_a_network_sees_one_hot_words(form):
    env = form(8, 2)
    x = env.step(env.init(), 3)
    assert env.coordinates(x).tolist() == [3, 4, 4, 4]
    assert env.sides == (5, 5, 5, 5)
    np.testing.assert_array_equal(env.observe(x).reshape(4, 5), np.eye(5)[[3, 4, 4, 4]])


@FORMS
def test_the_full_size_steps_back_to_where_it_came_from(form):
    env = form()
    rng = np.random.default_rng(0)
    step, undo = jax.jit(env.step), jax.jit(env.undo)
    x, past = env.init(), []
    while not env.is_terminal(x):
        action = int(rng.choice(np.flatnonzero(env.forward_mask(x))))
        past.append((x, action))
        x = step(x, action)
    assert len(past) == 15
    assert not env.forward_mask(x).any()
    for before, action in reversed(past):
        assert env.backward_mask(x)[action]
        x = undo(x, action)
        assert x.letters.tolist() == before.letters.tolist()


@FORMS
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 12}, "length must be a positive multiple of 8, got 12"),
        ({"length": 0}, "length must be at least 1, got 0"),
        ({"word": 0}, "word must be at least 1, got 0"),
        ({"word": 20}, "word must be from 1 to 16 and divide length=120, got 20"),
        ({"length": 16, "word": 3}, "word must be from 1 to 16 and divide length=16, got 3"),
        ({"exponent": -1.0}, "exponent must be positive and finite, got -1.0"),
        ({"exponent": float("nan")}, "exponent must be positive and finite, got nan"),
        ({"modes": 0}, "modes must be at least 1, got 0"),
        ({"radius": 0}, "radius must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ],
)
def test_bad_fields_are_refused(form, fields, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        form(**fields)


def test_a_test_set_has_a_string_and_no_more_than_there_are():
    with pytest.raises(ValueError, match=r"^num must be at least 1, got 0$"):
        BitSequences().test_set(0)
    assert BitSequences(length=16, modes=3).test_set(1_000).letters.shape == (48, 2)


def test_bit_sequences_can_be_configured_and_described():
    settings = ["env=bitsequences", "env.length=16", "env.word=4", "env.radius=5"]
    env = setup_from(read_settings(None, settings)).env
    assert env == BitSequences(16, 4, radius=5)
    assert hash(env) == hash(BitSequences(16, 4, radius=5))
    for again in (env, AppendedBitSequences(8)):
        assert setup_from({"env": describe(again)}).env == again
    with pytest.raises(NatgfnError, match="divide length=16, got 3"):
        setup_from(read_settings(None, ["env=bit_sequences", "env.length=16", "env.word=3"]))


@pytest.mark.slow
@FORMS
def test_the_default_rule_learns_short_strings(form):
    run = ng.train(form(8, 4), updates=300, batch=64, progress=False)
    assert run.metrics["tv"][-1] < 0.05 < run.metrics["tv"][0]
    assert run.metrics["discovered"][-1] == 5  # of sixty modes of one piece
