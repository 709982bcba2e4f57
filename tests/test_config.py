"""Configurations: from text to a setup, and back from a record."""

from pathlib import Path

import equinox as eqx
import pytest

import natgfn as ng
from natgfn.errors import NatgfnError
from natgfn.objectives import Huber, TrajectoryBalance
from natgfn.occupancy import Sampled
from natgfn.optim import Adam, Cosine, Natural
from natgfn.policies import PathCount
from natgfn.sampling import UniformMixture, Weighting
from natgfn.training import (
    Setup,
    catalogue,
    construct,
    describe,
    load_setup,
    put,
    read_settings,
    setup_from,
)
from natgfn.watch import Certificate, Exact


def test_a_file_and_settings_become_objects(tmp_path: Path):
    file = tmp_path / "run.toml"
    file.write_text('updates = 7\n[env]\nname = "Hypergrid"\nside = 6\n[rule]\nname = "Natural"\n')
    table = read_settings(
        file, ["env.side=4", "rule.occupancy=sampled", "rule.rate=1", "backward=pathcount"]
    )
    assert setup_from(table) == Setup(
        ng.envs.Hypergrid(side=4),
        Natural(occupancy=Sampled(), rate=1.0),
        updates=7,
        backward=PathCount(),
    )


def test_watchers_are_a_list_of_names_and_tables():
    text = 'watch=["exact", {name="certificate", every=50}]'
    assert setup_from(read_settings(None, ["env=triangles", text])).watch == (
        Exact(),
        Certificate(50),
    )
    alone = setup_from(read_settings(None, ["env=triangles", "watch=exact"]))
    assert alone.watch == (Exact(),)


def test_a_rate_is_a_number_or_a_schedule():
    settings = ["env=triangles", "rule=adam", "rule.rate=cosine", "rule.rate.start=0.1"]
    with pytest.raises(NatgfnError, match=r"rule.rate: Cosine needs steps"):
        setup_from(read_settings(None, settings))
    made = setup_from(read_settings(None, [*settings, "rule.rate.steps=50", "rule.clip=1"]))
    assert made.rule == Adam(Cosine(0.1, 50), clip=1.0)
    assert setup_from(made.configuration()) == made


@pytest.mark.parametrize("name", ["SampleSpace", "sample_space", "samplespace", "SAMPLE-SPACE"])
def test_names_do_not_depend_on_case_or_underscores(name: str):
    assert setup_from({"env": "triangles", "rule": name}).rule == ng.optim.SampleSpace()


@pytest.mark.parametrize(
    "settings",
    [
        ["rule.occupancy=sampled", "rule=natural"],
        ["rule=natural", "rule.occupancy=sampled"],
        ["rule.name=natural", "rule.occupancy.name=Sampled"],
        ['rule={name="Natural", occupancy="Sampled"}'],
    ],
)
def test_short_and_long_forms_agree_in_any_order(settings: list[str]):
    made = setup_from(read_settings(None, ["env=triangles", *settings]))
    assert made.rule == Natural(occupancy=Sampled())


def test_a_name_alone_starts_from_defaults():
    table = {"env": "triangles", "rule": {"name": "Natural", "damping": 0.5}}
    assert setup_from(put(table, ["rule=adam"])).rule == Adam()
    assert table["rule"] == {"name": "Natural", "damping": 0.5}


def test_none_unsets_what_may_be_missing():
    settings = ["env=triangles", "rule=natural", "rule.rate=none", "reference=none"]
    made = setup_from(read_settings(None, settings))
    assert made.rule.rate is None
    assert made.reference is None


def test_everything_exported_can_be_named():
    found = dict(catalogue())
    assert {"Hypergrid", "Triangles"} <= set(found["env"])
    assert {"Uniform", "Table", "Network", "PathCount", "Constant"} <= set(found["backward"])
    assert {"Squared", "Huber"} == set(found["objective.penalty"])
    assert {"Exact", "Sampled", "Messages", "Certificate", "Snapshots"} == set(found["watch"])
    assert {"Block", "Dense"} <= set(found["rule.solver"])
    names = [name for choices in found.values() for name in choices]
    assert not [name for name in names if name.startswith("Abstract") or name == "StateSpace"]


def test_settings_without_a_name_are_those_of_the_default():
    settings = ["env=hypergrid", "objective.penalty=huber"]
    assert setup_from(read_settings(None, settings)).objective == TrajectoryBalance(Huber())


def test_a_whole_number_for_a_rate_is_the_same_configuration():
    class Rule(eqx.Module):
        rate: float
        other: float | None
        count: int

    assert describe(Rule(1, 2, 3)) == {"name": "Rule", "rate": 1.0, "other": 2.0, "count": 3}
    assert [type(x) for x in describe(Rule(1, 2, 3)).values()] == [str, float, float, int]


BAD = {
    "env=Hypergird": ("env", "Hypergird", "did you mean Hypergrid", "Triangles"),
    "env.size=4": ("env", "'size'", "did you mean side", "dims"),
    "env.side=8.5": ("env.side", "integer", "8.5"),
    "env.side=true": ("env.side", "integer", "True"),
    "env.side=1": ("env", "side must be at least 2", "got 1"),
    "env=3": ("env", "Hypergrid", "got 3"),
    "updates=many": ("updates", "integer", "'many'"),
    "updatez=5": ("'updatez'", "did you mean updates"),
    "out=elsewhere": ("'out'",),
    "rule=adam rule.rate=-1": ("rule", "rate must be", "got -1.0"),
    "rule=natural rule.rate=fast": ("rule.rate", "number", "'fast'"),
    "rule=natural rule.solver=cholesky": ("rule.solver", "'cholesky'", "Dense"),
    "rule=natural rule.solver.size=3": ("rule.solver", "Auto", "'size'", "budget"),
    "reference.epsilon=1": ("reference", "which one", "reference.name", "UniformMixture"),
    "rule.rate=1": ("rule", "which one", "rule.name", "SampleSpace"),
    "rule=samplespace rule.rate=1": ("rule", "SampleSpace", "'rate'", "damping"),
    "watch=nobody": ("watch", "'nobody'", "Exact"),
    "weighting.clip=0": ("weighting", "clip must be positive", "got 0.0"),
    "backward=table backward.size=1": ("backward", "Table", "'size'", "it has none"),
    "updates=3 updates.more=1": ("updates", "is 3", "'more'"),
    "side": ("key=value", "'side'"),
    ".side=3": ("key=value", "'.side=3'"),
}


@pytest.mark.parametrize("settings", BAD)
def test_bad_settings_name_the_field(settings: str):
    with pytest.raises(NatgfnError) as caught:
        setup_from(read_settings(None, ["env=hypergrid", *settings.split()]))
    message = str(caught.value)
    assert "\n" not in message
    for words in BAD[settings]:
        assert words in message


def test_an_environment_is_required():
    with pytest.raises(NatgfnError, match=r"a run needs env, one of .*Hypergrid"):
        setup_from({})


def test_fields_without_default_are_required():
    class Sized(ng.envs.Hypergrid):
        cells: int = 3

        def __init__(self, cells: int):
            super().__init__()
            self.cells = cells

    with pytest.raises(NatgfnError, match=r"Sized needs cells: set it with cells="):
        construct(Sized, {})


def test_a_record_makes_its_run_again(tmp_path: Path):
    settings = [
        "env=hypergrid",
        "env.side=4",
        "env.floor=1",
        "rule=natural",
        "rule.occupancy=sampled_scores",
        "objective.penalty=huber",
        "objective.penalty.threshold=2.5",
        "backward=table",
        "proposal=uniform_mixture",
        "reference=on_policy",
        "weighting.clip=5",
        "batch=8",
        "updates=2",
        "seed=3",
    ]
    made = setup_from(read_settings(None, settings))
    assert made.objective == TrajectoryBalance(Huber(2.5))
    assert made.proposal == UniformMixture()
    assert made.weighting == Weighting(clip=5.0)
    run = ng.run(made, out=tmp_path / "first", progress=False)
    again = load_setup(tmp_path / "first")
    assert (again.env, again.rule, again.objective) == (made.env, made.rule, made.objective)
    assert (again.backward, again.reference) == (made.backward, made.reference)
    assert ng.run(again, progress=False).configuration == run.configuration
