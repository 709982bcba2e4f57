"""Results as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

DEFAULT = "Natural (sample space)"
"""The default rule on its own trajectories, by the name that it has in all tables."""
LISTED = "Default (half from the list)"
"""What `train` chooses for a table: the same rule, with half of every batch to listed objects."""
TUNED, UNTUNED = "tuned rates", "no rate"
"""How the rates of a row were found."""

COLUMNS = ("kl", "tv", "jsd", "elbo", "gap", "l1", "modes", "loss")


def results_markdown(results: Mapping[str, Any]) -> str:
    """The whole page of one experiment: rows, claims, sweeps, and how it was made."""
    settings = [key for key in results["rows"][0]["setting"] if key != "rate"]
    head = [*settings, "method", "rate", *COLUMNS]
    body = []
    for row in results["rows"]:
        setting, metrics = row["setting"], row["metrics"]
        rate = setting["rate"] or "none"
        cells = [cell(metrics[name]) for name in COLUMNS]
        body.append([*(str(setting[key]) for key in settings), row["method"], rate, *cells])
    sections = [
        f"# {results['experiment']}, {results['scale']} scale",
        results["about"],
        f"{made_by(results)} Mean ± standard deviation over "
        f"{results['rows'][0]['seeds']} seeds, from the exact terminal law, in nats. A number of "
        "the paper's would stand in brackets; it reports its tabular experiments as figures only.",
        table(head, body),
        *standing(results),
        *claims_and_sweeps(results),
    ]
    return "\n\n".join(sections) + "\n"


def standing(results: Mapping[str, Any]) -> list[str]:
    """The default, where it was run as it comes too, beside every tuned method, by the mean of its
    final KL: a section."""
    settings: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        kind, ours = row["setting"]["rates"], row["method"] in (DEFAULT, LISTED)
        if kind == (UNTUNED if ours else TUNED):
            bare = {k: v for k, v in row["setting"].items() if k not in ("rates", "rate")}
            settings.setdefault(_setting(bare), {})[row["method"]] = row["metrics"]["kl"]["mean"]
    body = []
    for setting, final in settings.items():
        own = {name: final.pop(name) for name in (DEFAULT, LISTED) if name in final}
        ranked = sorted(final.items(), key=lambda item: item[1])
        for method, ours in own.items():
            sides = ([x for x in ranked if not x[1] < ours], [x for x in ranked if x[1] < ours])
            ahead, behind = ("; ".join(f"{name} {kl:.2g}" for name, kl in side) for side in sides)
            behind = f"**{behind}**" if behind else "none"
            body.append([setting, method, f"{ours:.2g}", ahead or "none", behind])
    return [
        "## Where the default stands",
        f"{DEFAULT}, with no rate to tune, beside each method at its best rates, by the mean of "
        "the final KL. What `train` does with a table where nothing is said adds trajectories to "
        f"objects of its list: {LISTED}, where that was run.",
        table(["setting", "default", "its KL", "ahead of", "behind"], body),
    ]


def claims_and_sweeps(results: Mapping[str, Any]) -> list[str]:
    """The last sections of a page."""
    claims = [
        [_setting(c["setting"]), c["claim"], "yes" if c["holds"] else "**no**", c["evidence"]]
        for c in results["claims"]
    ]
    sweeps = [
        [_setting(s["setting"]), s["method"], _rates(s["kl"]), s["best"]] for s in results["sweeps"]
    ]
    return [
        "## Claims",
        table(["setting", "claim", "holds", "evidence"], claims),
        "## Sweeps (final KL, on other seeds)",
        table(["setting", "method", "rate: KL", "best"], sweeps),
    ]


def made_by(results: Mapping[str, Any]) -> str:
    """The command and the versions behind a page; of each part, where it was made in parts."""
    parts = [*results.get("before", ()), results]
    made = [
        f"by `{part['command']}` with "
        + ", ".join(f"{name} {version}" for name, version in part["versions"].items())
        for part in parts
    ]
    whole = (
        " Without `--only` the command makes all of it."
        if any("--only" in part["command"] for part in parts)
        else ""
    )
    return f"Made {'; then '.join(made)}.{whole}"


def cell(metric: Mapping[str, float | None]) -> str:
    text = f"{metric['mean']:.4g} ± {metric['std']:.1g}"
    return text if metric.get("paper") is None else f"{text} ({metric['paper']:g})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _setting(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in setting.items())


def _rates(values: Mapping[str, float]) -> str:
    return "; ".join(f"{rate}: {value:.2g}" for rate, value in values.items())
