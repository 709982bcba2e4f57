"""The page of certificates, at smoke scale."""

import json
import re

import pytest

from natgfn.errors import NatgfnError
from paper.experiments import certificates, reproduce
from paper.statements import STATEMENTS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    page = reproduce("certificates", scale="smoke", out=out)
    return out, page.read_text(), json.loads((out / "certificates.smoke.json").read_text())


def test_the_page_of_certificates_has_a_row_a_statement(smoke):
    _, page, results = smoke
    chosen = STATEMENTS[:: certificates.SCALES["smoke"].every]
    assert [row["label"] for row in results["statements"]] == [s.label for s in chosen]
    for row in results["statements"]:
        assert row["held"] == row["instances"] == 20
        assert f"| `{row['label']}` | {row['claim']} | 20/20 |" in page
    assert f"{len(chosen)} of {len(chosen)} statements hold" in page
    assert certificates.SCALES["paper"].every == 1


def test_certified_directions_stay_below_their_limit(smoke):
    _, _, results = smoke
    kinds = {point["surrogate"] for point in results["surrogates"]}
    assert kinds == {"sampled", "factorised"}
    finite = 0
    for point in results["surrogates"]:
        limits = map(float, point["limit"])  # JSON has no infinity
        for rho, error, limit in zip(point["rho"], point["fisher"], limits, strict=True):
            assert error <= limit * (1 + 1e-9)
            finite += limit < float("inf")
            if rho < 1:
                assert limit == pytest.approx(rho / (1 - rho))
    assert finite > 5


def test_certified_networks_have_less_error_with_more_damping(smoke):
    out, page, results = smoke
    points = results["network"]["points"]
    steps = {point["step"] for point in points}
    assert len(steps) == 9
    by = {(p["step"], p["damping"]): p["rho"][0] for p in points}
    assert all(by[step, 0.1] < by[step, 0.001] for step in steps)
    assert results["network"]["parameters"] == 16 * 32 + 32 + 32 * 32 + 32 + 32 * 3 + 3
    for name in ("direction", "training"):
        assert (out / f"certificates.smoke.{name}.png").stat().st_size > 10_000
    assert "direction_error" in page


def test_a_part_can_be_made_anew_and_the_page_has_every_command(smoke, monkeypatch):
    out, page, results = smoke
    monkeypatch.setattr(certificates, "STATEMENTS", STATEMENTS[:1])
    again = reproduce("certificates", scale="smoke", out=out, only=["statements"]).read_text()
    found = json.loads((out / "certificates.smoke.json").read_text())
    assert len(found["statements"]) == 1 < len(results["statements"])
    for name in ("surrogates", "network", "rates"):
        assert found[name] == results[name]
    older = {key: results[key] for key in ("command", "versions", "git")}
    assert found["before"] == [older]
    assert found["command"] == f"{results['command']} --only statements"
    assert "; then by" not in page
    made = f"Made by `{older['command']}` with [^;]*; then by `{found['command']}` with"
    assert re.search(made, again)


def test_no_part_can_be_kept_of_other_results(smoke):
    out, _, results = smoke
    with pytest.raises(NatgfnError, match="to keep surrogates, network of: leave out --only"):
        certificates.run("smoke", None, out, only=["statements"])
    with pytest.raises(NatgfnError, match="of this configuration"):
        certificates.run("smoke", 7, out, only=["statements"], earlier=results)
