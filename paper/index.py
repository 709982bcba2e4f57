"""Every table and figure of the paper by its label, and where ours is."""

import json
from pathlib import Path
from typing import NamedTuple

from natgfn.errors import NatgfnError

from .experiments import EXPERIMENTS, reproduce
from .tables import table


class Entry(NamedTuple):
    """What stands beside one label of the paper."""

    shows: str
    experiment: str = ""
    """A key of `EXPERIMENTS`; empty where the paper draws a sketch."""
    figures: tuple[str, ...] = ()
    """Ours: what their file names have after the experiment and its scale."""
    remark: str = ""


_RATES = ("paper_rates", "tuned_rates", "no_rate")
_SKETCH = "a sketch that explains a theorem, without data; the theorem is checked"
_LEVELS = "the paper's target is not given: ours is reconstructed"
_MLP = (
    "the order of the paper's three rules holds, on a small MLP; its Transformer has not been run "
    "to the end"
)
_PRINTED = "baselines as in the paper; Natural CG and K-FAC as printed end far from its numbers"
_SEEDS = "the page says how many seeds of each method have been run"

INDEX: dict[str, Entry] = {
    "fig:triangle_case": Entry("loss and KL on random graphs", "triangle", ("",)),
    "fig:hypergrid": Entry("loss, TV and KL, H=8 and 16", "hypergrid", _RATES),
    "fig:vanilla_heatmap_h08": Entry(
        "terminal laws, H=8", "hypergrid", tuple(f"heat_map.h08.{rates}" for rates in _RATES)
    ),
    "fig:weighted_hyper_colormaps": Entry(
        "terminal laws, H=16", "hypergrid", tuple(f"heat_map.h16.{rates}" for rates in _RATES)
    ),
    "fig:deceptive_visited": Entry("modes visited", "deceptive", ("discovered",), _PRINTED),
    "fig:deceptive_tv": Entry("total variation", "deceptive", ("tv",), _PRINTED),
    "fig:deceptive_l1": Entry("mean error of a probability", "deceptive", ("l1",), _PRINTED),
    "fig:deceptive_heatmaps_H128": Entry(
        "terminal laws, H=128", "deceptive", ("heat_map.h128",), _PRINTED
    ),
    "fig:deceptive_heatmaps_H256": Entry(
        "terminal laws, H=256", "deceptive", ("heat_map.h256",), _SEEDS
    ),
    "tab:deceptive_half_H128": Entry("H=128, 15,000 updates", "deceptive", (), _PRINTED),
    "tab:deceptive_half_H256": Entry("H=256, 15,000 updates", "deceptive", (), _SEEDS),
    "tab:deceptive_full_H256": Entry("H=256, 30,000 updates", "deceptive", (), _SEEDS),
    "fig:8g_overview": Entry(
        "the walk, 8 Gaussians", "walk", ("overview", "laws.8_gaussians.constant"), _LEVELS
    ),
    "tab:8g_ext": Entry("the walk, 8 Gaussians", "walk", (), _LEVELS),
    "fig:rings_overview": Entry("the walk, rings", "walk", ("overview",), _LEVELS),
    "fig:rings_dists": Entry("terminal laws, rings", "walk", ("laws.rings.constant",), _LEVELS),
    "fig:rings_bars": Entry("final metrics, rings", "walk", ("bars.rings.constant",), _LEVELS),
    "tab:rings_ext": Entry("the walk, rings", "walk", (), _LEVELS),
    "tab:sachs_fisher_main": Entry("continuations on the Sachs data", "dag-sachs", (), _MLP),
    "fig:sachs_posterior_graphs": Entry("edge marginals", "dag-sachs", ("mlp.graphs",), _MLP),
    "fig:sachs_fisher_convergence": Entry("progress", "dag-sachs", ("mlp.convergence",), _MLP),
    "fig:sachs_final_diagnostics": Entry("final samples", "dag-sachs", ("mlp.diagnostics",), _MLP),
    "tab:synthetic_fisher_appendix": Entry(
        "continuations on simulated data", "dag-synthetic", (), _MLP
    ),
    "fig:synthetic_fisher_convergence": Entry(
        "progress",
        "dag-synthetic",
        ("mlp.standardised.convergence", "mlp.as_drawn.convergence"),
        _MLP,
    ),
    "fig:fisher_preconditioning_geometry": Entry(
        "metric balls of a damped Fisher and a surrogate", "certificates", ("direction",), _SKETCH
    ),
    "fig:gflownet_realizability_terminal_law": Entry(
        "a flow with a given terminal law", "certificates", (), _SKETCH
    ),
}
"""In the order of the experiments."""


def reproduce_all(*, scale: str = "smoke", seeds: int | None = None, out: str | Path) -> Path:
    """Run every experiment, as `reproduce` does; what was finished before is not run again.

    Returns:
        The path of the index, `index.<scale>.md` in `out`.
    """
    for name in EXPERIMENTS:
        reproduce(name, scale=scale, seeds=seeds, out=out)
    return write_index(Path(out), scale)


def write_index(out: Path, scale: str) -> Path:
    """Write `index_page` beside the results that it links to."""
    path = out / f"index.{scale}.md"
    try:
        path.write_text(index_page(out, scale))
    except OSError as error:
        raise NatgfnError(f"cannot write the index {path}: {error.strerror}") from error
    return path


def index_page(out: Path, scale: str) -> str:
    """The index in Markdown, with links to the pages and figures that `out` has."""
    rows = []
    for label, entry in INDEX.items():
        stem = f"{entry.experiment}.{scale}"
        page = out / f"{stem}.md"
        named = {page: "page"}
        for name in entry.figures:
            path = out / ".".join(filter(None, (stem, name, "png")))
            named[path] = name.translate(str.maketrans("._", "  ")) or "figure"
        links = [f"[{text}]({path.name})" for path, text in named.items() if path.exists()]
        rows.append([
            f"`{label}`", entry.shows, "<br>".join(links) or "**not run**",
            _claims(out / f"{stem}.json"), entry.remark,
        ])  # fmt: skip
    return "\n\n".join([
        f"# The paper by its labels, {scale} scale",
        "Every table and figure of the paper, and ours. The pages have the paper's numbers beside "
        "ours, the claims one by one, what was decided where the paper is silent, and the command "
        "and versions that made them.",
        table(["label", "shows", "ours", "claims that hold", "remark"], rows),
    ]) + "\n"  # fmt: skip


def _claims(path: Path) -> str:
    """How many of an experiment's claims hold, if its results list any."""
    try:
        claims = json.loads(path.read_text()).get("claims") or []
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise NatgfnError(f"cannot read the results {path}: {error}; move them away") from error
    return f"{sum(bool(c['holds']) for c in claims)} of {len(claims)}" if claims else ""
