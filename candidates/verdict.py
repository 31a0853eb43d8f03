"""The verdict on a candidate version, as JSON. Imports nothing, so that any job can name it."""

from typing import NotRequired, TypedDict

BLESS, REFUSE = "bless", "refuse"


class CandidateVerdict(TypedDict):
    """What `candidates.comparison.compare` returns and `multigate candidates compare` prints."""

    verdict: str
    """`BLESS` or `REFUSE`."""
    reasons: list[str]
    positives: str
    """The task whose positives are the answers."""
    questions: int
    k: int
    recall: NotRequired[dict[str, float | None]]
    """recall@k of `candidate`, `production` and `popularity`; absent where there are no questions,
    None for a production that cannot be compared with."""
    loss: NotRequired[float | None]
    """Recall of production - recall of the candidate; None without production."""
    interval: NotRequired[list[float] | None]
    """95 % interval of the loss (normal, paired, over users); None below ten users."""
