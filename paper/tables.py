"""Results as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

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
        *claims_and_sweeps(results),
    ]
    return "\n\n".join(sections) + "\n"


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
    """The command and the versions behind a page."""
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return f"Made by `{results['command']}` with {versions}."


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
