"""The search for better settings: `multigate tune`."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from multigate.configs.sections.base import Frozen, contradiction

TUNED = ("model", "train")


class Range(Frozen):
    """Numbers between two limits, both included."""

    low: float
    """The lowest value."""
    high: float
    """The highest value."""
    log: bool = False
    """Draw the logarithm uniformly."""
    whole: bool = False
    """Whole numbers only."""

    @model_validator(mode="after")
    def _check(self) -> "Range":
        if self.low >= self.high:
            raise contradiction(f"expected low below high, received {self.low:g} and {self.high:g}")
        if self.log and self.low <= 0:
            raise contradiction(f"log: expected low above 0, received {self.low:g}")
        if self.whole and (self.low % 1 or self.high % 1):
            raise contradiction(
                f"whole: expected whole limits, received {self.low:g} and {self.high:g}"
            )
        return self


class Choices(Frozen):
    """One of some values: numbers, texts or lists."""

    choices: tuple[Any, ...] = Field(min_length=1, examples=[[256, 1024]])
    """The values to choose from."""


class TuneConfig(Frozen):
    """`multigate tune`."""

    space: dict[str, Annotated[Range | Choices, Field(union_mode="left_to_right")]] = Field({})
    """Dotted name of a setting -> what to try, such as `train.learning_rate` or
    `model.gate.entropy_weight`. Settings of `model` and `train` only: with others, the trials'
    values of the monitor could not be compared."""
    trials: int = Field(20, ge=1)
    """Trials in all, including those of earlier runs in the same folder."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How settings are drawn: tpe prefers what did well so far, random draws uniformly."""
    prune: bool = True
    """Stop a trial whose monitor is worse than the median of the others' at the same epoch."""
    prune_after: int = Field(5, ge=1)
    """Trials that run to their end before any is pruned."""
    seed: int = Field(0, ge=0)
    """Seed of the drawn settings; the trials train with `train.seed`."""

    @model_validator(mode="after")
    def _check(self) -> "TuneConfig":
        for name in self.space:
            if name == "train.monitor":
                raise contradiction(
                    "space: expected one monitor for all trials, received 'train.monitor'; values "
                    "of different monitors cannot be compared"
                )
            if name.partition(".")[0] not in TUNED or "." not in name:
                raise contradiction(
                    f"space: expected settings of {' or '.join(TUNED)}, such as "
                    f"train.learning_rate; received {name!r}"
                )
        return self
