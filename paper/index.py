"""Every table and figure of the paper by its label, the paper's numbers and ours side by side."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from natgfn.errors import NatgfnError
from natgfn.training import numbers

from .experiments import EXPERIMENTS, check
from .printed import PRINTED, beside
from .tables import cell, table


class Entry(NamedTuple):
    """What stands beside one label of the paper."""

    shows: str
    figures: tuple[str, ...] = ()
    """Ours: what their file names have after the experiment and its scale. `*` stands for any
    network."""
    numbers: str = "the paper prints none"
    """Where the paper has numbers for it."""


class Part(NamedTuple):
    """An experiment of the paper."""

    title: str
    says: str
    """What the paper concludes."""
    reconstructed: str
    """What the paper does not give, and we made from what it does."""
    decided: str
    """What we chose where the paper is silent."""
    labels: Mapping[str, Entry]


_RATES = ("paper_rates", "tuned_rates", "no_rate")
_H = "`tab:deceptive_half_H128`, `tab:deceptive_full_H256`"

PARTS: dict[str, Part] = {
    "triangle": Part(
        "Triangle counts",
        "Natural (exact) lowers TB loss and KL faster than Euclidean.",
        "nothing",
        "batches of 128, rates 0.1 and 0.01 for log Z, damping 1e-3, 8,000 updates; also without "
        "sampling noise, with the rates of a sweep on other seeds, and with Adam, which is not in "
        "the paper.",
        {"fig:triangle_case": Entry("loss and KL over updates", ("",))},
    ),
    "hypergrid": Part(
        "Hypergrid",
        "Natural lowers loss and TV faster than Euclidean and ACE at H=8; at H=16 the approximate "
        "Fishers recover the three reward levels, the exact one does not fully.",
        "ACE, of which no code is public.",
        "5,000 updates at H=8 and 20,000 at H=16; strict inequalities in the reward, as printed; "
        "also the rates of a sweep on other seeds, and Adam.",
        {
            "fig:hypergrid": Entry("loss, TV and KL over updates, H=8 and 16", _RATES),
            "fig:vanilla_heatmap_h08": Entry(
                "terminal laws, H=8", tuple(f"heat_map.h08.{rates}" for rates in _RATES)
            ),
            "fig:weighted_hyper_colormaps": Entry(
                "terminal laws, H=16", tuple(f"heat_map.h16.{rates}" for rates in _RATES)
            ),
        },
    ),
    "deceptive": Part(
        "Deceptive grid",
        "Both Fisher variants find modes faster than Euclidean training and cover about as many as "
        "the Adaptive Teacher; in TV, KL and ELBO they are not ahead throughout.",
        "nothing; the rows on policy are those that agree with the paper's Adam.",
        "walls end an episode and P_B is normalised; new and replayed batches in turn, replay "
        "ranked by reward (the Teacher's by its own); the gradient is clipped to norm 1 before the "
        "momentum, which leaves the steps of Natural CG and K-FAC as printed far too short: "
        "`tuned` rows are the best of five settings on another seed; Adam and SGD at 1e-3, log Z "
        "by Adam at 0.1, exploration 0.01.",
        {
            "fig:deceptive_visited": Entry("modes visited over updates", ("discovered",), _H),
            "fig:deceptive_tv": Entry("total variation over updates", ("tv",), _H),
            "fig:deceptive_l1": Entry(
                "mean error of a probability", ("l1",), f"TV of {_H}, times 2 / H^2"
            ),
            "fig:deceptive_heatmaps_H128": Entry("terminal laws, H=128", ("heat_map.h128",)),
            "fig:deceptive_heatmaps_H256": Entry("terminal laws, H=256", ("heat_map.h256",)),
            "tab:deceptive_half_H128": Entry("H=128, 15,000 updates", (), "below"),
            "tab:deceptive_half_H256": Entry("H=256, 15,000 updates", (), "below"),
            "tab:deceptive_full_H256": Entry("H=256, 30,000 updates", (), "below"),
        },
    ),
    "walk": Part(
        "Lazy random walk",
        "On 8 Gaussians the natural variants lower the final TV from 0.190 to about 0.170; on "
        "Rings they recover 24 to 25 modes of 36, the others 16.",
        "both targets, from the number of their modes and the ELBO of the target; ACE and the "
        "Wasserstein correction, of which no code is public.",
        "rates 0.1 and 0.01 for log Z, damping 1e-3. P_B is not given: the rows here have 1/5 for "
        "every move, which does not sum to one and which the paper's plateaus fit; the page also "
        "has one that does, under which every method goes on to the target.",
        {
            "fig:8g_overview": Entry(
                "8 Gaussians", ("overview", "laws.8_gaussians.constant"), "`tab:8g_ext`"
            ),
            "tab:8g_ext": Entry("8 Gaussians, final metrics", (), "below"),
            "fig:rings_overview": Entry("Rings", ("overview",), "`tab:rings_ext`"),
            "fig:rings_dists": Entry(
                "Rings, terminal laws", ("laws.rings.constant",), "`tab:rings_ext`"
            ),
            "fig:rings_bars": Entry(
                "Rings, final metrics", ("bars.rings.constant",), "`tab:rings_ext`"
            ),
            "tab:rings_ext": Entry("Rings, final metrics", (), "below"),
        },
    ),
    "dag-sachs": Part(
        "Graphs: Sachs",
        "The damped Fisher lowers the loss AUC of Adam and is level with KL-controlled Adam; "
        "nothing separates their samples.",
        "nothing; the rows of the MLP follow the same protocol with a smaller network.",
        "scores relative to the empty graph, logarithms standardised, warm-up by Adam at 3e-4. "
        "E-SHD is by the paper's formula, in which a reversed edge counts twice; its numbers are "
        "near what the page has with such an edge counted once.",
        {
            "tab:sachs_fisher_main": Entry("continuations, 500 updates", (), "below"),
            "fig:sachs_posterior_graphs": Entry("probabilities of edges", ("*.graphs",)),
            "fig:sachs_fisher_convergence": Entry(
                "progress on the probe", ("*.convergence",), "`tab:sachs_fisher_main`"
            ),
            "fig:sachs_final_diagnostics": Entry(
                "final samples", ("*.diagnostics",), "`tab:sachs_fisher_main`"
            ),
        },
    ),
    "dag-synthetic": Part(
        "Graphs: synthetic",
        "The damped Fisher lowers the loss AUC of Adam in every seed, and that of KL-controlled "
        "Adam by little.",
        "the data: the graphs have the paper's numbers of edges, the order of what is drawn after "
        "them is a guess.",
        "data as drawn, and, as a variant, standardised.",
        {
            "tab:synthetic_fisher_appendix": Entry("continuations, 500 updates", (), "below"),
            "fig:synthetic_fisher_convergence": Entry(
                "progress on the probe",
                ("*.standardised.convergence", "*.as_drawn.convergence"),
                "`tab:synthetic_fisher_appendix`",
            ),
        },
    ),
    "certificates": Part(
        "Theory",
        "Two sketches, without data, explain theorems.",
        "nothing",
        "every statement is checked on random instances instead.",
        {
            "fig:fisher_preconditioning_geometry": Entry(
                "metric balls of a damped Fisher and a surrogate", ("direction",)
            ),
            "fig:gflownet_realizability_terminal_law": Entry("a flow with a given terminal law"),
        },
    ),
}
"""The experiments of the paper, by their keys in `EXPERIMENTS`, and its labels in each."""


ALONE = {"NPROC": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Variables of a process that has one core: one thread each for XLA and for LAPACK."""


def reproduce_all(*, scale: str = "smoke", seeds: int | None = None, out: str | Path) -> Path:
    """Run every experiment, a process for each on as many cores as there are, then the index.

    What was finished before is not run again. What the processes say is in `out/.work/*.log`.

    Returns:
        The path of the index, `index.<scale>.md` in `out`.

    Raises:
        NatgfnError: an experiment failed; the others were run, and the index is there.
    """
    for name in EXPERIMENTS:
        check(name, scale, seeds)
    out = Path(out)
    logs = {name: out / ".work" / f"{name}.{scale}.log" for name in EXPERIMENTS}
    try:
        (out / ".work").mkdir(parents=True, exist_ok=True)
        # One that is there is renewed by every experiment, and here they would do so at once.
        (out / f"index.{scale}.md").unlink(missing_ok=True)
    except OSError as error:
        raise NatgfnError(f"cannot make the folder {out}: {error.strerror}") from error
    running: set[subprocess.Popen[bytes]] = set()
    say = Console(stderr=True).print

    def one(name: str) -> bool:
        start = time.monotonic()
        with logs[name].open("w") as log:
            process = subprocess.Popen(
                command(name, scale, seeds, out), stdout=log, stderr=log, env=os.environ | ALONE
            )
            running.add(process)
            failed = process.wait() != 0
            running.discard(process)
        say(f"{name}: {'failed' if failed else 'done'} after {time.monotonic() - start:.0f} s")
        return failed

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            failed = dict(zip(EXPERIMENTS, pool.map(one, EXPERIMENTS), strict=True))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()  # it saves what it has
            raise
    page = write_index(out, scale)
    if any(failed.values()):
        told = ", ".join(str(logs[name]) for name, bad in failed.items() if bad)
        count = f"{sum(failed.values())} of {len(failed)}"
        raise NatgfnError(f"{count} experiments failed: see {told}")
    return page


def command(name: str, scale: str, seeds: int | None, out: Path) -> list[str]:
    """What runs one experiment in a process of its own."""
    words = [sys.executable, "-m", "natgfn.cli", "reproduce", name, "--scale", scale]
    return [*words, "--out", str(out), *(["--seeds", str(seeds)] if seeds else [])]


def write_index(out: Path, scale: str) -> Path:
    """Write `index_page` beside the results that it links to."""
    path = out / f"index.{scale}.md"
    try:
        path.write_text(index_page(out, scale))
    except OSError as error:
        raise NatgfnError(f"cannot write the index {path}: {error.strerror}") from error
    return path


def index_page(out: Path, scale: str) -> str:
    """The index in Markdown, from the results that `out` has."""
    lines, sections = [], []
    for name, part in PARTS.items():
        stem = f"{name}.{scale}"
        results = _results(out / f"{stem}.json")
        claims = _claims(name, results) if results else []
        held = f"{sum(bool(c['holds']) for c in claims)} of {len(claims)}" if claims else ""
        for label, entry in part.labels.items():
            links = "<br>".join(_links(out, stem, entry)) or "**not run**"
            lines.append([f"`{label}`", entry.shows, links, entry.numbers, held])
        sections += [f"## {part.title}", _about(part), *_numbers(name, part, results)]
        sections += _verdicts(claims, f"{stem}.md")
    head = ["label", "shows", "ours", "the paper's numbers", "claims of its experiment that hold"]
    return "\n\n".join([
        f"# The paper by its labels, {scale} scale",
        "Every table and figure of the paper, and ours. Below, experiment by experiment: the "
        "paper's numbers (in italics) and ours, what holds and what does not, what is "
        "reconstructed, and what was decided where the paper is silent. The pages have the rest, "
        "and the commands and versions that made them.",
        table(head, lines),
        *sections,
    ]) + "\n"  # fmt: skip


def _links(out: Path, stem: str, entry: Entry) -> list[str]:
    """To the page and to every figure, if they are there."""
    found = {out / f"{stem}.md": "page"}
    for name in entry.figures:
        for path in sorted(out.glob(".".join(filter(None, (stem, name, "png"))))):
            shown = path.name.removeprefix(stem).removesuffix("png").strip(".")
            found[path] = shown.translate(str.maketrans("._", "  ")) or "figure"
    return [f"[{text}]({path.name})" for path, text in found.items() if path.exists()]


def _about(part: Part) -> str:
    return (
        f"*The paper*: {part.says}\n\n*Reconstructed*: {part.reconstructed}\n\n"
        f"*Decided where the paper is silent*: {part.decided}"
    )


def _numbers(name: str, part: Part, results: Mapping[str, Any] | None) -> list[str]:
    """The tables of an experiment beside the paper's; or ours, where it prints figures only."""
    if results is None:
        return ["**Not run.**"]
    found = []
    for label in part.labels:
        if label in PRINTED:
            ours = EXPERIMENTS[name].measured(results, label)
            found += [f"### `{label}`", beside(PRINTED[label], ours)]
    return found or ([_finals(results)] if "rows" in results else [])


def _finals(results: Mapping[str, Any]) -> str:
    """The last values of the curves that the paper draws."""
    metrics = ("loss", "kl", "tv", "modes")
    settings = [key for key in results["rows"][0]["setting"] if key not in ("rates", "rate")]
    body = [
        [
            *(str(row["setting"][key]) for key in settings),
            row["method"],
            row["setting"]["rates"],
            *(cell(row["metrics"][metric]) for metric in metrics),
        ]
        for row in results["rows"]
    ]
    return table([*settings, "method", "rates", *metrics], body)


def _claims(name: str, results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """An experiment's claims: those it was written with, or those that are read off its runs."""
    if hasattr(EXPERIMENTS[name], "paper_claims"):
        return EXPERIMENTS[name].paper_claims(results)
    return results.get("claims") or []


def _verdicts(claims: list[dict[str, Any]], page: str) -> list[str]:
    """What holds, by claim, and what does not, with the evidence."""
    if not claims:
        return []
    holding: dict[str, list[str]] = {}
    for claim in claims:
        if claim["holds"]:
            holding.setdefault(claim["claim"], []).append(_setting(claim))
    broken = [
        f"- {claim['claim']} ({_setting(claim)}): {claim['evidence']}"
        for claim in claims
        if not claim["holds"]
    ]
    held = [f"- {text} ({'; '.join(where)})" for text, where in holding.items()]
    return [
        f"**Holds** ([evidence]({page})):",
        "\n".join(held or ["- nothing"]),
        "**Does not hold**:",
        "\n".join(broken or ["- nothing"]),
    ]


def _setting(claim: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in claim["setting"].items())


def _results(path: Path) -> dict[str, Any] | None:
    """The results of an experiment, if it was run."""
    try:
        return numbers(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NatgfnError(f"cannot read the results {path}: {error}; move them away") from error
