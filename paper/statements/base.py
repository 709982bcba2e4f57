"""What a statement is."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import PRNGKeyArray

from natgfn.certify import Bound, Evidence


@dataclass(frozen=True)
class Statement:
    """One statement of the paper.

    Attributes:
        label: the paper's.
        claim: what is checked, in words.
        check: from a key to the evidence of one instance.
        tight: an instance near equality, for inequalities.
        rounding: how far an identity may be off; the expansion in a small step is not exact.
    """

    label: str
    claim: str
    check: Callable[[PRNGKeyArray], Evidence]
    tight: Callable[[], Bound] | None = None
    rounding: float = 1e-9
