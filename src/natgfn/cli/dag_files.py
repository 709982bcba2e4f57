"""What the commands of `natgfn dag` write into a folder, and say of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NatgfnError
from .files import picture
from .voice import Voice

if TYPE_CHECKING:
    import numpy as np

    from ..dag import AbstractPosterior, ExactPosterior, SampledPosterior, Weights

_SHOWN = 0.01
"""The least probability of an edge in the files for other programs."""


def write(
    out: Path,
    found: "AbstractPosterior",
    samples: "np.ndarray",
    summary: dict[str, Any],
    weights: "Weights",
    voice: Voice,
) -> dict[str, Any]:
    """Tables, a summary, which is returned, and a picture.

    Probabilities of paths and blankets, classes, effects and what may change with the rows are
    those of `samples`.
    """
    from ..dag import effects_of, graphs, stability_of, write_dot, write_graphml
    from ..training import cell, versions

    frames = {
        "edge_marginals": found.edge_marginals,
        "path_marginals": found.frame(graphs.ancestors(samples).mean(axis=0)),
        "markov_blankets": found.frame(graphs.markov_blankets(samples).mean(axis=0)),
    }
    for name, frame in frames.items():
        frame.rename(index=cell, columns=cell).to_csv(out / f"{name}.csv")
    for suffix, export in (("graphml", write_graphml), ("dot", write_dot)):
        export(found.graph(_SHOWN), out / f"posterior.{suffix}")
    told = summary | _best(found, samples) | {"versions": versions()}
    stable = stability_of(samples, found.edge_marginals.to_numpy(), weights)
    told |= {"stability": stable.summary()}
    (out / "summary.json").write_text(json.dumps(told, indent=2) + "\n")
    table = weights.data
    if not table.discrete:
        try:
            effects = effects_of(samples, table).tidy()
            names = {end: effects[end].map(cell) for end in ("cause", "effect")}
            effects.assign(**names).to_csv(out / "effects.csv", index=False)
        except NatgfnError as error:
            voice.say(f"no effects.csv: {error}")
    picture(voice, lambda: found.plot(out / "posterior.png"))
    return told


def _best(found: "AbstractPosterior", samples: "np.ndarray") -> dict[str, Any]:
    """The most probable graph, and the most probable Markov equivalence class among `samples`."""
    import numpy as np

    from ..dag import graphs

    def spelt(edges: np.ndarray, between: str) -> list[str]:
        return [between.join(found.names[end] for end in edge) for edge in np.argwhere(edges)]

    (graph,), (probability,) = found.top(1)
    both, share = graphs.most_frequent_class(samples)
    return {
        "most_probable_graph": {"probability": float(probability), "edges": spelt(graph, "->")},
        "most_probable_class": {
            "share_of_draws": share,
            "one_way": spelt(both & ~both.T, "->"),
            "either_way": spelt(np.triu(both & both.T), "--"),
        },
    }


def law(found: "ExactPosterior | SampledPosterior") -> dict[str, float]:
    """What a summary starts with."""
    return {
        "log_z_relative_to_empty": found.log_z,
        "expected_edges": found.expected_edges,
        "expected_log_reward": found.expected_log_reward,
    }


def headline(found: "ExactPosterior | SampledPosterior") -> str:
    return (
        f"log Z {found.log_z:.6g} relative to the empty graph, E|G| {found.expected_edges:.4g}, "
        f"E[log R] {found.expected_log_reward:.6g}"
    )


def keep_samples(
    out: Path,
    graphs: "np.ndarray",
    log_rewards: "np.ndarray",
    names: tuple[str, ...],
    log_weights: "np.ndarray | None" = None,
) -> None:
    """Graphs with their log-rewards, and the importance weights of those of a sampler."""
    import numpy as np

    arrays: dict[str, Any] = {
        "graphs": graphs,
        "log_rewards": log_rewards,
        "names": np.array(names),
    }
    if log_weights is not None:
        arrays["log_weights"] = log_weights
    np.savez_compressed(out / "samples.npz", allow_pickle=False, **arrays)


def how_it_went(found: "SampledPosterior", summary: dict[str, Any]) -> Iterator[str]:
    yield headline(found)
    quality = summary["quality"]
    share = quality["effective_sample_share"]
    moved = quality["largest_correction_of_a_marginal"]
    yield (
        f"effective sample size of importance-corrected estimates: {share:.1%} of the draws; they "
        f"change an edge by {moved:.2g} at most"
    )
    if "largest_difference_between_seeds" in quality:
        apart = quality["largest_difference_between_seeds"]
        yield f"seeds differ in the probability of an edge by {apart:.2g} at most"
    if found.rejected:
        yield f"{found.rejected} updates were not finite, and were rejected"
    if "distance_to_exact" in summary:
        error = summary["distance_to_exact"]["largest_error_of_a_marginal"]
        yield f"no probability of an edge is further than {error:.2g} from the exact one"
    else:
        trust = summary["trust"]
        yield (
            f"log Z is between {trust['elbo']:.6g} (ELBO) and {trust['eubo']:.6g} (EUBO); "
            f"edges differ from chains by {trust['mean_difference_from_chains']:.2g} on average, "
            f"{trust['largest_difference_from_chains']:.2g} at most"
        )
