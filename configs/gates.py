"""Typed options of every gate."""

from typing import Annotated, Literal

from pydantic import Field

from configs.base import Frozen


class Softmax(Frozen):
    """Every expert has a weight."""

    name: Literal["softmax"]
    static: bool = False


GateConfig = Annotated[Softmax, Field()]
