"""Figures of what training left behind."""

from .figures import draw_band as draw_band
from .figures import draw_laws as draw_laws
from .figures import draw_marginals as draw_marginals
from .figures import draw_record as draw_record
from .figures import draw_relative_errors as draw_relative_errors
from .figures import heat_maps as heat_maps
from .figures import save as save
