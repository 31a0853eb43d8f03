"""The registry of gates: makes a gate by name.

`model.gates` fills it.  A gate that is made of other gates (`hierarchical`) makes them from here.
"""

import inspect
from typing import Any

from multigate.model.gates.parts.base import Gate

GATES: dict[str, type[Gate]] = {}
"""Gate by name."""

# Options of every Keras layer; not `name`, which here is the name of the gate.
_LAYER_OPTIONS = {"dtype", "trainable"}


def names() -> list[str]:
    """Names that `make` accepts."""
    return list(GATES)


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
    if name not in GATES:
        raise ValueError(f"gate: expected one of {', '.join(GATES)}; received {name!r}")
    gate = GATES[name]
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
