"""Occupancies: the routes to the trajectory Fisher, one a file."""

from .base import AbstractOccupancy as AbstractOccupancy
from .exact import Exact as Exact
from .factorised import Factorised as Factorised
from .sampled import Sampled as Sampled
from .sampled import SampledScores as SampledScores
from .stratified import Stratified as Stratified
