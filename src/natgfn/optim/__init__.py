"""Update rules, as optax transformations."""

from .natural import by_part as by_part
from .natural import fitted_natural_gradient as fitted_natural_gradient
from .natural import gauss_newton as gauss_newton
from .natural import natural_gradient as natural_gradient
from .rules import AbstractRule as AbstractRule
from .rules import Adam as Adam
from .rules import Euclidean as Euclidean
from .rules import Natural as Natural
from .rules import SampleSpace as SampleSpace
