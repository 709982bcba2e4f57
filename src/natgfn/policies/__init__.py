"""Policies: how the probabilities of actions are parameterised."""

from .backward import Constant as Constant
from .backward import ConstantPolicy as ConstantPolicy
from .backward import PathCount as PathCount
from .backward import PathCountPolicy as PathCountPolicy
from .backward import Uniform as Uniform
from .backward import UniformPolicy as UniformPolicy
from .base import AbstractDesign as AbstractDesign
from .base import AbstractPolicy as AbstractPolicy
from .base import Flow as Flow
from .base import masked_log_softmax as masked_log_softmax
from .base import masked_softmax as masked_softmax
from .hierarchical import Hierarchical as Hierarchical
from .hierarchical import Tied as Tied
from .network import MLP as MLP
from .network import Look as Look
from .network import Network as Network
from .network import usual_design as usual_design
from .tabular import Table as Table
from .tabular import Tabular as Tabular
from .tabular import backward_table as backward_table
from .tabular import forward_probs as forward_probs
from .tabular import forward_table as forward_table
from .transformer import LinearTransformer as LinearTransformer
from .transformer import Transformer as Transformer
