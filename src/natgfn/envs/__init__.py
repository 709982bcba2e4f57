"""Environments: what is built, and its reward. One a file."""

from .base import AbstractEnv as AbstractEnv
from .base import ListsObjects as ListsObjects
from .base import OnGrid as OnGrid
from .base import State as State
from .deceptive import DeceptiveGrid as DeceptiveGrid
from .hypergrid import Hypergrid as Hypergrid
from .parent_sets import ParentSets as ParentSets
from .triangles import Triangles as Triangles
