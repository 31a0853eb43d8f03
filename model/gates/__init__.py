"""The gates: all of the papers' behind one signature; `docs/gates.md` holds the formulas.

Public face: `make`, `names`, `Gate`, `Properties`, `Routing`.
"""

from multigate.model.gates.comet import Comet
from multigate.model.gates.dselect_k import DSelectK
from multigate.model.gates.expert_choice import ExpertChoice
from multigate.model.gates.gumbel_softmax import GumbelSoftmax
from multigate.model.gates.hash import Hash
from multigate.model.gates.hierarchical import Hierarchical
from multigate.model.gates.moesart import Moesart
from multigate.model.gates.noisy_topk import NoisyTopK
from multigate.model.gates.parts.base import Gate, Properties, Routing
from multigate.model.gates.parts.registry import GATES, make, names
from multigate.model.gates.sampled.router import Sampled
from multigate.model.gates.softmax import Softmax
from multigate.model.gates.softmax_selector import SoftmaxSelector
from multigate.model.gates.switch import Switch
from multigate.model.gates.topk import TopK
from multigate.model.gates.vmoe import VMoE
from multigate.model.gates.xmoe import XMoE

__all__ = ["Gate", "Properties", "Routing", "make", "names"]

GATES.update(
    {
        "softmax": Softmax,
        "topk": TopK,
        "noisy_topk": NoisyTopK,
        "vmoe": VMoE,
        "switch": Switch,
        "xmoe": XMoE,
        "expert_choice": ExpertChoice,
        "hash": Hash,
        "dselect_k": DSelectK,
        "softmax_selector": SoftmaxSelector,
        "gumbel_softmax": GumbelSoftmax,
        "moesart": Moesart,
        "comet": Comet,
        "hierarchical": Hierarchical,
        "sampled": Sampled,
    }
)
