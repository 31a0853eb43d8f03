"""Losses of regression tasks; `model.ranker.heads` has their formulas.

Each may be written by its name alone (`loss: huber`) or with its options
(`loss: {kind: quantile, q: 0.9}`).  docs/modelling.md says which pays when.
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from multigate.configs.sections.base import Frozen


class Squared(Frozen):
    """Squared error; predicts the mean."""

    kind: Literal["squared"]


class Huber(Frozen):
    """Squared error of small residuals, absolute error of large ones: outliers weigh less."""

    kind: Literal["huber"]
    delta: float = Field(1.0, gt=0)
    """Residual at which it changes, in deviations of the (transformed) label."""


class Quantile(Frozen):
    """Pinball loss; predicts a quantile, such as the median; it is not calibrated."""

    kind: Literal["quantile"]
    q: float = Field(0.5, gt=0, lt=1)
    """Share of the labels that lie below the prediction."""


class Censored(Frozen):
    """A normal distribution cut off at the label's cap: a label at its cap says "at least this".

    The cap is a dwell label's `cap` or the upper end of `clip`. The score is the expected label,
    which is at most the cap.
    """

    kind: Literal["censored"]


class Ordinal(Frozen):
    """Probabilities that the label exceeds each of some thresholds; predicts the expected value."""

    kind: Literal["ordinal"]
    thresholds: int = Field(16, ge=1, le=100)
    """Thresholds at quantiles of the training labels; fewer where labels repeat, such as stars."""


class ZeroInflated(Frozen):
    """The probability of a label above 0, times a log-normal amount; predicts the mean.

    It takes the logarithm itself, so that the label has no transform. Labels below 0 count as 0.
    """

    kind: Literal["zero_inflated"]


def _named(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


_Options = Annotated[
    Squared | Huber | Quantile | Censored | Ordinal | ZeroInflated, Field(discriminator="kind")
]
_Name = Literal["squared", "huber", "quantile", "censored", "ordinal", "zero_inflated"]

Loss = Annotated[_Options, BeforeValidator(_named, json_schema_input_type=_Name | _Options)]
