"""Every gate of the papers behind one signature; `docs/gates.md` holds the formulas."""

from typing import Any

from model.gates.base import Gate, Properties, Routing
from model.gates.softmax import Softmax

_GATES: dict[str, type[Gate]] = {
    "softmax": Softmax,
}

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
        ValueError: unknown gate or option, or an argument out of its range.
    """
    if name not in _GATES:
        raise ValueError(f"gate: expected one of {', '.join(_GATES)}; received {name!r}")
    gate = _GATES[name]
    try:
        return gate(num_experts=num_experts, num_selected=num_selected, static=static, **options)
    except TypeError as error:
        raise ValueError(f"gate {name!r}: {error}") from error
