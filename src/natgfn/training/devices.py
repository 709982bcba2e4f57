"""Several devices that share the batches of a run: which, and of how many processes."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from ..algorithm import TrainState, mesh_of
from ..errors import require_whole
from .setup import Setup


def mesh_for(setup: Setup, devices: int) -> Mesh:
    """The devices that share the batches of a decided setup.

    Raises:
        ValueError: there are not so many, or the batch cannot be split evenly between them.
    """
    require_equal_parts("devices", devices, setup.batch)
    if devices > 1 and setup.source is not None and setup.source.in_expectation:
        name = type(setup.source).__name__
        raise ValueError(f"sources.{name} draws no batch that {devices} devices could share")
    there, processes = jax.device_count(), jax.process_count()
    if devices > there:
        raise ValueError(
            f"devices={devices}, and JAX has {there}: cores are devices with jax.config.update("
            f"'jax_num_cpu_devices', {devices}) before JAX is used, or as natgfn train --processes"
        )
    if processes > 1 and devices < there:
        raise ValueError(f"devices must be all {there} of the {processes} processes, got {devices}")
    return mesh_of(devices)


def require_equal_parts(name: str, count: int, batch: int) -> None:
    """A ValueError of one line, unless `count` divides a batch."""
    require_whole(name, count, 1)
    if batch % count:
        raise ValueError(f"{name} must be a number that divides batch={batch:,}, got {count:,}")


def from_first(states: TrainState) -> TrainState:
    """The states that the first of several processes has."""
    if jax.process_count() == 1:
        return states
    arrays, rest = eqx.partition(states, eqx.is_array)
    sent = multihost_utils.broadcast_one_to_all(arrays)
    return eqx.combine(jax.tree.map(jnp.asarray, sent), rest)
