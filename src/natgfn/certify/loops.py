"""Loops around something expensive: part of the program in a compiled function, plain outside.

A compiled loop has the program of its body in it, once for every place that calls it. What is
expensive to compile, and runs for seconds, is better compiled once and called by a plain loop.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Bool, PyTree

T = TypeVar("T", bound=PyTree)


def repeat(unfinished: Callable[[T], Bool[Array, ""]], step: Callable[[T], T], carry: T) -> T:
    """`step` for as long as `unfinished`."""
    if is_traced(carry):
        return jax.lax.while_loop(unfinished, step, carry)
    while unfinished(carry):
        carry = step(carry)
    return carry


def one_by_one(function: Callable[[Array], Array], each: Array) -> Array:
    """A function of each row, one after the other."""
    if is_traced(each):
        return jax.lax.map(function, each)
    return jnp.stack([function(row) for row in each])


def is_traced(tree: PyTree) -> bool:
    """Whether this is part of a program that is being compiled, or of a question about shapes."""
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))
