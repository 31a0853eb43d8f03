"""The candidate model: two towers that retrieve what the ranker then ranks."""

from typing import Annotated

from pydantic import Field

from multigate.configs.sections.base import Frozen

Width = Annotated[int, Field(ge=1)]


class CandidateRules(Frozen):
    """When a candidate model may go into production.

    Recall is that of `recall_at` items over `next_item` questions of the test split, as a share of
    1; see `candidates.comparison`.
    """

    largest_loss: float = Field(0.02, ge=0, le=1)
    """By how much recall may be below that of the version in production."""
    largest_below_popularity: float = Field(0.0, ge=0, le=1)
    """By how much recall may be below that of recommending the most popular items."""


class CandidatesConfig(Frozen):
    """`multigate candidates`: architecture, training and index of the two-tower model.

    If a configuration has this section, even an empty one, `multigate run` builds the candidate
    model as well as the ranker.
    """

    positives: str | None = Field(None, examples=["click"])
    """The binary task whose positives are the pairs of user and item to learn from. Default: the
    contract's first binary engagement task, or else its first binary task."""
    embedding_dim: int = Field(64, ge=1)
    """Width of every embedding, and of the towers' output."""
    units: tuple[Width, ...] = ()
    """Widths of each tower's hidden ReLU layers; with none, a tower is a linear map."""
    hidden_users: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, examples=[0.5])
    """Share of the training rows whose user id is hidden, so that the tower learns to serve unknown
    users. Default: the share of them on the validation split, at least 0.1 and at most 0.9."""
    hidden_items: Annotated[float, Field(ge=0, lt=1)] | None = Field(None, examples=[0.5])
    """Share of the items whose id is hidden in each step, so that the tower learns to place new
    ones. Default: as for users."""
    normalise: bool = True
    """Whether scores are cosines instead of dot products."""
    temperature: float = Field(0.1, gt=0)
    """Scores are divided by it in the loss."""
    epochs: int = Field(20, ge=1)
    """Most passes over the pairs."""
    batch_size: int = Field(1024, ge=2)
    """Pairs per step."""
    softmax_items: int = Field(100_000, ge=0)
    """Up to so many items, all others are a pair's negatives; with more items, those of the other
    pairs in its batch."""
    learning_rate: float = Field(2e-3, gt=0)
    """Learning rate of Adam."""
    patience: int = Field(2, ge=1)
    """Epochs without a better recall on the validation split after which training stops; the best
    epoch's weights are kept."""
    recall_at: int = Field(100, ge=1)
    """k of the recall that training stops by and evaluation reports first."""
    seed: int = Field(0, ge=0)
    """Seed of initial weights and shuffling."""
    rules: CandidateRules = CandidateRules()
    report_questions: int = Field(0, ge=0)
    """How many questions of the test split the nightly run uses to measure what retrieving first
    costs (`multigate candidates report`); 0 skips this stage."""
