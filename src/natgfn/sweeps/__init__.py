"""Sweeps: settings times seeds, every trial an ordinary run, on as many processes as there are."""

from .cluster import cores as cores
from .result import Sweep as Sweep
from .result import direction as direction
from .study import STUDY as STUDY
from .study import Study as Study
from .study import Trial as Trial
from .study import study_from as study_from
from .study import study_in as study_in
from .study import vary as vary
from .sweeping import run_study as run_study
from .sweeping import sweep as sweep
from .trial import run_trial as run_trial
