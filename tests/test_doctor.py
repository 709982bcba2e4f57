"""`natgfn doctor`: blesses this machine, and no machine that computes wrong numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from natgfn.cli import app, doctor
from natgfn.cli.doctor import Probe, judge

GOOD, WRONG = Probe("one way", 1e-6), Probe("another way", 0.5)


@pytest.mark.parametrize("error", [0.5, float("nan"), float("inf")])
def test_wrong_numbers_are_refused_by_name(error: float):
    verdict = judge([GOOD, Probe("another way", error)], "0.10.0")
    assert "another way" in verdict
    assert "one way" not in verdict
    assert "jax==0.10.0" in verdict


def test_a_known_bad_version_is_refused_though_the_numbers_agree():
    verdict = judge([GOOD], "0.10.2")
    assert "jax 0.10.2 is known to compute wrong numbers" in verdict
    assert judge([GOOD], "0.10.0") == "healthy"


def test_a_lost_row_is_noticed():
    """What jax 0.10.2 does: the rows after the first 32,768 are stale."""

    def losing_rows(function):
        def batched(rows):
            result = jax.vmap(function)(rows)
            kept = jnp.arange(len(result)) < 32_768
            return jnp.where(kept, result, jnp.roll(result, 1))

        return batched

    assert not doctor._row_sums(losing_rows).ok
    assert doctor._row_sums().ok


@pytest.mark.parametrize(
    ("probes", "version", "code", "words"),
    [
        ([GOOD], "0.10.0", 0, "healthy"),
        ([GOOD, WRONG], "0.10.0", 1, "wrong numbers from another way"),
        ([GOOD], "0.10.2", 1, "known to compute wrong numbers"),
    ],
)
def test_exit_code_and_verdict(
    monkeypatch: pytest.MonkeyPatch, probes: list[Probe], version: str, code: int, words: str
):
    monkeypatch.setattr(doctor, "examine", lambda: probes)
    monkeypatch.setattr(jax, "__version__", version)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == code
    lines = result.output.splitlines()
    assert words in lines[-1]
    assert "numpy " + np.__version__ in lines[0]
    assert lines[1].startswith("devices: ")
    assert len(lines) == 3 + len(probes)
