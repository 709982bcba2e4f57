"""Figures of what training left behind, by matplotlib."""

from ..errors import MissingExtra

try:
    from .drawing import draw_band as draw_band
    from .drawing import draw_laws as draw_laws
    from .drawing import draw_marginals as draw_marginals
    from .drawing import draw_record as draw_record
    from .drawing import draw_relative_errors as draw_relative_errors
    from .drawing import heat_maps as heat_maps
    from .drawing import plt as plt
    from .drawing import save as save
except ModuleNotFoundError as error:
    raise MissingExtra(error, "plot") from error
