"""Does this machine compute what it should? One Fisher system, solved in three ways."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import typer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from .envs import Hypergrid
from .fisher import Fisher, Occupancy
from .policies import AbstractPolicy
from .solvers import Dense
from .statespace import StateSpace, enumerate_states
from .train.record import versions

KNOWN_BAD = ("0.10.2",)
"""Versions of JAX that solve Fisher systems wrongly on the CPU."""

DAMPING = 1e-3
TOLERANCE = 1e-2
"""Of float32 conjugate gradients at a condition number of about 1e3, relative to the solution."""


class Probe(AbstractPolicy):
    """A small network on one-hot coordinates: two hidden layers, leaky ReLU."""

    network: eqx.nn.MLP
    space: StateSpace

    def __call__(self, state: Int[Array, ""]) -> Float[Array, " actions"]:
        return self.network(jax.lax.stop_gradient(self.space.observe(state)))


def examine() -> int:
    """Print versions, devices and a verdict; 0 if this machine can be trusted, 1 otherwise."""
    found = versions()
    typer.echo(", ".join(f"{name} {version}" for name, version in found.items()))
    typer.echo(f"devices: {', '.join(map(str, jax.devices()))}")
    errors = solve_three_ways()
    for name, error in errors.items():
        typer.echo(f"{name:<48} relative error {error:.1e}")
    wrong = [name for name, error in errors.items() if not error < TOLERANCE]
    if found["jax"] in KNOWN_BAD:
        typer.echo(
            f"verdict: REFUSED: jax {found['jax']} is known to solve Fisher systems wrongly on the "
            "CPU, differently from run to run; install jax==0.10.0"
        )
        return 1
    if wrong:
        typer.echo(f"verdict: REFUSED: {' and '.join(wrong)} disagree with float64; try jax==0.10.0")
        return 1
    typer.echo("verdict: healthy: three ways to solve one Fisher system agree")
    return 0


def solve_three_ways() -> dict[str, float]:
    """Relative errors against float64 NumPy of the float32 solves."""
    space = enumerate_states(Hypergrid(side=16))
    network = eqx.nn.MLP(
        32, space.num_actions, 16, 2, activation=jax.nn.leaky_relu, key=jax.random.key(0)
    )
    states = jnp.arange(space.num_inner)
    visits = Occupancy(states, jnp.full(space.num_inner, 1 / space.num_inner))
    policy = Probe(network, space)
    params, static = eqx.partition(network, eqx.is_inexact_array)

    def fisher(network: eqx.nn.MLP) -> Fisher:
        return Fisher(space, Probe(network, space), visits)
    return {}
