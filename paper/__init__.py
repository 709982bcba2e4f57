"""The paper: its experiments, its statements, and the rules of its studies.

Not part of the installed library. `natgfn reproduce NAME` runs an experiment in a checkout,
`natgfn reproduce all` every one.
"""

from .experiments import EXPERIMENTS as EXPERIMENTS
from .experiments import reproduce as reproduce
from .index import reproduce_all as reproduce_all
from .index import write_index as write_index
