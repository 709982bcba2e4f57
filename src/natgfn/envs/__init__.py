"""Environments: what is built, and its reward. One a file."""

from .base import AbstractEnv as AbstractEnv
from .base import Action as Action
from .base import CountsModes as CountsModes
from .base import HasDistance as HasDistance
from .base import HasModes as HasModes
from .base import HasTestSet as HasTestSet
from .base import Identical as Identical
from .base import KnowsLogZ as KnowsLogZ
from .base import ListsObjects as ListsObjects
from .base import OnGrid as OnGrid
from .base import State as State
from .bit_sequences import AppendedBitSequences as AppendedBitSequences
from .bit_sequences import BitSequences as BitSequences
from .dags import AbstractDags as AbstractDags
from .dags import Dag as Dag
from .dags import Dags as Dags
from .deceptive import DeceptiveGrid as DeceptiveGrid
from .gaussian_dags import GaussianDags as GaussianDags
from .hypergrid import Hypergrid as Hypergrid
from .lazy_walk import LazyWalk as LazyWalk
from .parent_sets import ParentSets as ParentSets
from .targets import AbstractTarget as AbstractTarget
from .targets import Gaussians as Gaussians
from .targets import Rings as Rings
from .triangles import Triangles as Triangles
