"""The gates: all of the papers' behind one signature; `docs/gates.md` holds the formulas.

Public face: `make`, `names`, `Gate`, `Properties`, `Routing`.
"""

import inspect
from typing import Any

from multigate.model.gates.comet import Comet
from multigate.model.gates.dselect_k import DSelectK
from multigate.model.gates.expert_choice import ExpertChoice
from multigate.model.gates.gumbel_softmax import GumbelSoftmax
from multigate.model.gates.hash import Hash
from multigate.model.gates.hierarchical import Hierarchical
from multigate.model.gates.moesart import Moesart
from multigate.model.gates.noisy_topk import NoisyTopK
from multigate.model.gates.parts.base import Gate, Properties, Routing
from multigate.model.gates.sampled.router import Sampled
from multigate.model.gates.softmax import Softmax
from multigate.model.gates.softmax_selector import SoftmaxSelector
from multigate.model.gates.switch import Switch
from multigate.model.gates.topk import TopK
from multigate.model.gates.vmoe import VMoE
from multigate.model.gates.xmoe import XMoE

_GATES: dict[str, type[Gate]] = {
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

# Options of every Keras layer; not `name`, which here is the name of the gate.
_LAYER_OPTIONS = {"dtype", "trainable"}

__all__ = ["Gate", "Properties", "Routing", "make", "names"]


def names() -> list[str]:
    """Names that `make` accepts."""
    return list(_GATES)


def make(
    name: str,
    num_experts: int,
    num_selected: int = 1,
    static: bool = False,
    **options: Any,
) -> Gate:
    """Make a gate by name.

    Args:
        name: one of `names()`.
        num_experts: E.
        num_selected: k.
        static: one weight vector for all examples instead of one per example.
        options: the gate's own options, see its class; and `seed`.

    Raises:
        ValueError: unknown gate or option, or an argument is out of range.
    """
    if name not in _GATES:
        raise ValueError(f"gate: expected one of {', '.join(_GATES)}; received {name!r}")
    gate = _GATES[name]
    known = sorted(_options(gate))
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"gate {name!r}: unknown option {', '.join(map(repr, unknown))}; "
            f"expected any of {', '.join(known)}"
        )
    return gate(num_experts=num_experts, num_selected=num_selected, static=static, **options)


def _options(gate: type[Gate]) -> set[str]:
    """Options that `make` accepts: the gate's own and those of every gate and layer."""
    parameters = {*inspect.signature(Gate).parameters, *inspect.signature(gate).parameters}
    return parameters - {"num_experts", "num_selected", "static", "kwargs"} | _LAYER_OPTIONS
