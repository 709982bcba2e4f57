"""natgfn: GFlowNets trained by natural gradient."""

import os

# LAPACK's threads fight with XLA's for the cores: its small factorisations take ten to a
# hundred times longer with them. Read when NumPy and SciPy are first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from . import certify as certify
from . import dag as dag
from . import envs as envs
from . import graphical as graphical
from . import metrics as metrics
from . import objectives as objectives
from . import occupancy as occupancy
from . import optim as optim
from . import policies as policies
from . import sampling as sampling
from . import solvers as solvers
from . import sources as sources
from . import statespace as statespace
from . import training as training
from . import watch as watch
from .errors import NatgfnError as NatgfnError
from .training import Run as Run
from .training import Setup as Setup
from .training import run as run
from .training import train as train
