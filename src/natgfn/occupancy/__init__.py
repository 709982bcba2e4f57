"""Occupancies: the routes to the trajectory Fisher, one a file."""

from .base import AbstractOccupancy as AbstractOccupancy
from .beliefs import Beliefs as Beliefs
from .exact import Exact as Exact
from .factorised import ROUTES as ROUTES
from .factorised import Factorised as Factorised
from .sampled import Sampled as Sampled
from .sampled import SampledScores as SampledScores
from .separators import Separators as Separators
from .separators import context_occupancy as context_occupancy
from .stratified import Stratified as Stratified
from .stratified import pick as pick
from .trajectories import Trajectories as Trajectories
from .truncated import Truncated as Truncated
