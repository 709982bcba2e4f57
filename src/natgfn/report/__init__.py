"""Report pages: what runs left behind, as one HTML file that needs no server and no network."""

from .page import PAGE as PAGE
from .page import write_page as write_page
from .subject import Graph as Graph
from .subject import HeatMap as HeatMap
from .subject import Law as Law
from .subject import Subject as Subject
from .subject import Table as Table
from .subject import Verdict as Verdict
from .subject import flat as flat
from .subject import seen as seen
