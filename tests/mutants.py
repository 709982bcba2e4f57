"""Break certificates and messages, and show which test notices: `python tests/mutants.py [FILE]`.

With a word, only those of files that have it in their path. Each mutant is one change of a source
file, in a copy of the tree. A bound made tighter must be found false, one made looser must be found
unattained, and another surrogate must be noticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
CERTIFY, THEORY = "src/natgfn/certify", "paper/theory"
STRUCTURED, TAPE = "test_structured.py", "test_tape.py"


class Mutant(NamedTuple):
    what: str
    file: str
    old: str
    new: str
    tests: str
    """Which tests should notice, as `pytest -k` takes it."""
    files: str = "test_certify*.py"
    """Where these are."""


MUTANTS = [
    Mutant(
        "direction bound tightened by 2%",
        f"{CERTIFY}/surrogate.py",
        "return jnp.where(rho < 1, error, jnp.inf)",
        "return jnp.where(rho < 1, 0.98 * error, jnp.inf)",
        "natdir_bound_main and attained",
    ),
    Mutant(
        "direction bound loosened by 2%",
        f"{CERTIFY}/surrogate.py",
        "return jnp.where(rho < 1, error, jnp.inf)",
        "return jnp.where(rho < 1, 1.02 * error, jnp.inf)",
        "natdir_bound_main and attained",
    ),
    Mutant(
        "direction bound without the gradient's term",
        f"{CERTIFY}/surrogate.py",
        "(rho * direction + gradient_error)",
        "(rho * direction)",
        "structured_natdir_bound_main",
    ),
    Mutant(
        "rho of the undamped pencil's other side",
        f"{CERTIFY}/surrogate.py",
        "factor = jnp.linalg.cholesky(_damped(fisher, damping))",
        "factor = jnp.linalg.cholesky(_damped(surrogate, damping))",
        "generalised_eigenvalue",
    ),
    Mutant(
        "pairing from below tightened by 2%",
        f"{CERTIFY}/surrogate.py",
        "return Bound(exact / (1 + rho), pairing)",
        "return Bound(1.02 * exact / (1 + rho), pairing)",
        "pairing_from_below and attained",
    ),
    Mutant(
        "pairing from above tightened by 2%",
        f"{CERTIFY}/surrogate.py",
        "Bound(pairing, upper)",
        "Bound(pairing, 0.98 * upper)",
        "pairing_from_above and attained",
    ),
    Mutant(
        "rho <= gamma",
        f"{CERTIFY}/surrogate.py",
        "gamma / jnp.maximum(1 - gamma, 0.0)",
        "gamma",
        "gamma_ and statement_holds",
    ),
    Mutant(
        "descent promised with 1 instead of 1 - rho",
        f"{CERTIFY}/surrogate.py",
        "(1 - smoothness * rate / (2 * (1 - rho)))",
        "(1 - smoothness * rate / 2)",
        "descent_is_achieved",
    ),
    Mutant(
        "additive bound without delta in the gap",
        f"{CERTIFY}/surrogate.py",
        "gap = jnp.where(delta < floor, floor - delta, 1.0)",
        "gap = jnp.where(delta < floor, floor, 1.0)",
        "additive_natdir",
    ),
    Mutant(
        "coarse bound with lambda instead of its square",
        f"{CERTIFY}/surrogate.py",
        "jnp.linalg.norm(surrogate_h) / damping**2",
        "jnp.linalg.norm(surrogate_h) / damping",
        "coarser_bound",
    ),
    Mutant(
        "score bound with E|r| squared",
        f"{THEORY}/trajectories.py",
        "jnp.sum(paths.probs * multiplier**2)",
        "jnp.sum(paths.probs * jnp.abs(multiplier)) ** 2",
        "score_compatible",
    ),
    Mutant(
        "trajectory law without its probabilities",
        f"{THEORY}/trajectories.py",
        "return self.scores.T @ (self.probs[:, None] * self.scores)",
        "return self.scores.T @ self.scores / len(self.probs)",
        "exact_tabular_fisher_main or sum_over_steps",
    ),
    Mutant(
        "table floor tightened by 2%",
        f"{CERTIFY}/conditioning.py",
        "return Bound(least_visits * least_prob, ",
        "return Bound(1.02 * least_visits * least_prob, ",
        "d_min_p_min and attained",
    ),
    Mutant(
        "network floor without removing the mean",
        f"{CERTIFY}/conditioning.py",
        "moved - jnp.sum(moved, axis=1, keepdims=True) / count",
        "moved",
        "relative_logits",
    ),
    Mutant(
        "TB gap with one residual instead of two",
        f"{THEORY}/realisability.py",
        "return Bound(_law_gap(space, log_pf), 2 * residual)",
        "return Bound(_law_gap(space, log_pf), residual)",
        "TB_residuals",
    ),
    Mutant(
        "sampled surrogate swapped for the exact one",
        f"{CERTIFY}/policy.py",
        "if isinstance(occupancy, Exact) and self.fisher.occupancy.complete:",
        "if True:",
        "numbers_of_a_table and sampled",
    ),
    Mutant(
        "Davidson stops at once",
        f"{CERTIFY}/pencil.py",
        "return (done < iterations) & jnp.any(open_ & matters)",
        "return jnp.asarray(False)",
        "certify_pencil",
    ),
    Mutant(
        "limit of a quick certificate tightened by 2%",
        f"{CERTIFY}/ceiling.py",
        "return Ceiling(value, ",
        "return Ceiling(0.98 * value, ",
        "certified_interval and 99",
    ),
    Mutant(
        "limit of a quick certificate without the states left out",
        f"{CERTIFY}/ceiling.py",
        "jnp.maximum(found[-1], outside)",
        "found[-1]",
        "certified_interval and 1",
    ),
    Mutant(
        "steps of structured occupancies: K_t of the mean context",
        f"{CERTIFY}/structured.py",
        "jax.ops.segment_max(curvature, step, steps)",
        "jax.ops.segment_sum(curvature, step, steps) / jax.ops.segment_sum(step**0, step, steps)",
        "loop_over_the_steps or K_t_eps_t",
    ),
    Mutant(
        "structured occupancies: half the distance in 1-norm",
        f"{CERTIFY}/structured.py",
        "change = jnp.abs(surrogate - exact)",
        "change = jnp.abs(surrogate - exact) / 2",
        "K_t_eps_t and attained",
    ),
    Mutant(
        "structured occupancies: steps that were not counted forgotten",
        f"{CERTIFY}/structured.py",
        "jnp.where(missed == 0, jnp.sum(fisher), jnp.inf)",
        "jnp.sum(fisher)",
        "not_counted",
    ),
    Mutant(
        "structured occupancies: the largest step instead of the sum",
        f"{CERTIFY}/structured.py",
        "jnp.sum(fisher), jnp.inf)",
        "jnp.max(fisher), jnp.inf)",
        "loop_over_the_steps",
    ),
    Mutant(
        "Delta_F over lambda loosened by 2%",
        f"{CERTIFY}/structured.py",
        "total / damping)",
        "1.02 * total / damping)",
        "Delta_F and attained",
    ),
    Mutant(
        "conditional Fishers that are not centred",
        f"{THEORY}/structured.py",
        "centred = jacobian - ",
        "centred = jacobian - 0.5 * ",
        "conditional_Fishers",
    ),
    Mutant(
        "errors of steps as the largest of them",
        f"{THEORY}/structured.py",
        "return Bound(error, jnp.sum(step_errors(exact, surrogate)))",
        "return Bound(error, jnp.max(step_errors(exact, surrogate)))",
        "errors_of_steps",
    ),
    Mutant(
        "errors of steps loosened by 2%",
        f"{THEORY}/structured.py",
        "return Bound(error, jnp.sum(step_errors(exact, surrogate)))",
        "return Bound(error, 1.02 * jnp.sum(step_errors(exact, surrogate)))",
        "errors_of_steps and attained",
    ),
    Mutant(
        "messages: the step with the most slack",
        f"{THEORY}/structured.py",
        "worst = jnp.argmin(",
        "worst = jnp.argmax(",
        "least_slack",
    ),
    Mutant(
        "damped structured direction with half of Delta_F over lambda",
        f"{THEORY}/structured.py",
        "direction_limit(messages.errors(damping).relative, length)",
        "direction_limit(messages.errors(damping).relative / 2, length)",
        "this_allows and attained",
    ),
    Mutant(
        "undamped bound without Delta_F in the gap",
        f"{THEORY}/structured.py",
        "here.floor - total, 0.0)",
        "here.floor, 0.0)",
        "common_range",
    ),
    Mutant(
        "undamped bound loosened by 2%",
        f"{THEORY}/structured.py",
        "total * jnp.linalg.norm(h) / (here.floor * gap)",
        "1.02 * total * jnp.linalg.norm(h) / (here.floor * gap)",
        "common_range and attained",
    ),
    Mutant(
        "undamped bound whatever the ranges",
        f"{THEORY}/structured.py",
        "common & (total < here.floor)",
        "total < here.floor",
        "without_a_common_range",
    ),
    Mutant(
        "batches without importance weights",
        f"{THEORY}/consistency.py",
        "counts / size * self.paths.probs / self.law",
        "counts / size",
        "importance-weighted",
    ),
    Mutant(
        "batches of one size, whatever they are asked for",
        f"{THEORY}/consistency.py",
        "sampling.estimates(size, key=key)",
        "sampling.estimates(1000, key=key)",
        "rate and on-policy and statement_holds",
    ),
    Mutant(
        "projected direction without the sampled Fisher's inverse",
        f"{THEORY}/consistency.py",
        "jnp.linalg.cholesky(space.restrict(sampled))",
        "jnp.linalg.cholesky(space.restrict(fisher))",
        "unrestricted_pseudo",
    ),
    Mutant(
        "curvature of the projected Fisher with half its error",
        f"{THEORY}/consistency.py",
        "space.floor - absolute_error(fisher, sampled), least)",
        "space.floor - absolute_error(fisher, sampled) / 2, least)",
        "projected_inverse_exists",
    ),
    Mutant(
        "range of a Fisher with its null space",
        f"{THEORY}/geometry.py",
        "jnp.where(kept, vectors, 0.0)",
        "vectors",
        "unrestricted_pseudo or pseudo_inverses",
    ),
    Mutant(
        "exact occupancy halved",
        "src/natgfn/occupancy/exact.py",
        "return Occupancy(jnp.arange(space.num_inner), weights, complete=True)",
        "return Occupancy(jnp.arange(space.num_inner), weights / 2, complete=True)",
        "exact_tabular_fisher_main",
    ),
    Mutant(
        "message up that the last child overwrites",
        "src/natgfn/graphical/tree.py",
        "table.at[sources, values].add(message)",
        "table.at[sources, values].set(message)",
        "balance_in_expectation and table",
        STRUCTURED,
    ),
    Mutant(
        "message up from the roots first",
        "src/natgfn/graphical/tree.py",
        "self._pairs(), reverse=True)",
        "self._pairs())",
        "balance_in_expectation and table",
        STRUCTURED,
    ),
    Mutant(
        "message down without the mass of the parent",
        "src/natgfn/graphical/tree.py",
        "mass[sources] * probs[sources, values]",
        "probs[sources, values]",
        "probability_of_the_trajectories and table",
        STRUCTURED,
    ),
    Mutant(
        "law of a policy that sees less over too many values",
        "src/natgfn/policies/contextual.py",
        "    return masked_softmax(logits, jnp.asarray(env.possible))",
        "    return context_probs(env, policy)[contexts.within(tree.contexts)]",
        "probability_of_the_trajectories and grid",
        STRUCTURED,
    ),
    Mutant(
        "truncated contexts of unconditional pieces",
        "src/natgfn/occupancy/truncated.py",
        "shared = _number(contexts, common, by_cell) + np.zeros(grid.shape[1], int)",
        "shared = np.zeros(grid.shape[1], int)",
        "pieces_overlap",
        STRUCTURED,
    ),
    Mutant(
        "beliefs that hear of impossible contexts",
        "src/natgfn/occupancy/beliefs.py",
        "jnp.where(never[rows], ",
        "jnp.where(False, ",
        "beliefs and grid",
        STRUCTURED,
    ),
    Mutant(
        "variances without what follows",
        "src/natgfn/graphical/returns.py",
        "jnp.where(possible, (actions - values[:, None]) ** 2, 0.0)",
        "jnp.where(possible, (surplus - values[:, None]) ** 2, 0.0)",
        "balance_in_expectation and table",
        STRUCTURED,
    ),
    Mutant(
        "gradient in expectation without the occupancy",
        "src/natgfn/objectives/expectation.py",
        "2 * found.occupancy[:, None] * (found.actions",
        "2 * (found.actions",
        "balance_in_expectation and table",
        STRUCTURED,
    ),
    Mutant(
        "advantages of the next step",
        "src/natgfn/objectives/advantage.py",
        "returns.actions[rows, paths.actions] - returns.values[rows]",
        "returns.actions[rows, paths.actions] - returns.values[rows - 1]",
        "advantages and table",
        STRUCTURED,
    ),
    Mutant(
        "floor that replaces the exact occupancy",
        "src/natgfn/occupancy/separators.py",
        "weights = jnp.maximum(weights, visits)",
        "weights = jnp.where(visits > 0, visits, weights)",
        "sampled_batches",
        STRUCTURED,
    ),
    Mutant(
        "Gram matrix of pairs of states without their gates",
        "src/natgfn/objectives/tape.py",
        "both * (self.gates[:, None] * self.gates)",
        "both * (self.gates[:, None] + 0 * self.gates)",
        "gram_matrix and more",
        TAPE,
    ),
    Mutant(
        "Gram matrix in parts without the last",
        "src/natgfn/objectives/tape.py",
        "return total + part(parts * some, wide % some) if wide % some else total",
        "return total",
        "gram_matrix and long",
        TAPE,
    ),
]


def survives(mutant: Mutant, tree: Path) -> tuple[bool, str]:
    """Whether the tests still pass with the change, and the last line they print."""
    path = tree / mutant.file
    text = path.read_text()
    if mutant.old not in text:
        raise SystemExit(f"{mutant.what}: {mutant.file} has changed, no {mutant.old!r} in it")
    path.write_text(text.replace(mutant.old, mutant.new))
    files = sorted(str(p) for p in (tree / "tests").glob(mutant.files))
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", *files, "-k", mutant.tests]
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    path.write_text(text)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{mutant.what}: pytest did not run: {done.stdout[-500:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    noticed = failed[0].split("::")[1].split(" - ")[0] if failed else "nothing"
    return done.returncode == 0, noticed


def main() -> int:
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for name in ("src", "paper", "benchmarks", "tests", "pyproject.toml"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, tree / name)
        chosen = [m for m in MUTANTS if all(word in m.file for word in sys.argv[1:])]
        for mutant in chosen:
            lives, noticed = survives(mutant, tree)
            alive += lives
            verdict = "SURVIVED" if lives else "noticed"
            print(f"{verdict:<9} {mutant.what:<52} {noticed[:90]}", flush=True)
    print(f"{len(chosen) - alive} of {len(chosen)} mutants noticed")
    return 1 if alive else 0


if __name__ == "__main__":
    raise SystemExit(main())
