"""The ranker's architecture, its training, evaluation and export."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from multigate.configs.sections.base import Duration, Frozen, contradiction
from multigate.configs.sections.gates import GateConfig, Hierarchical, Sampled, Softmax
from multigate.configs.sections.labels import Task
from multigate.configs.sections.losses import Huber, Squared

Width = Annotated[int, Field(ge=1)]


class Cross(Frozen):
    """Products of the features before experts and gates (DCN-v2); see `model.ranker.cross`.

    They join user and item, so that the exported graph computes the experts' and gates' first
    layers for each candidate, with no part of them once per user.
    """

    layers: int = Field(2, ge=1)
    """With l layers, products of up to l + 1 features."""
    rank: int = Field(32, ge=1)
    """Of each layer's kernel: the cost is proportional to it."""


class Experts(Frozen):
    """The experts, stacks of dense layers: those that all tasks share, and each task's own."""

    count: int = Field(8, ge=1)
    """Experts that all tasks share."""
    own: int = Field(0, ge=0)
    """Experts that each task has for itself (PLE): its gate chooses among these and the shared
    ones."""
    units: tuple[Width, ...] = Field((64,), min_length=1)
    """Width of each layer; the last is U."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    """Activation of the hidden layers."""
    dropout: float = Field(0.3, ge=0, lt=1)
    """Applied after each layer while training."""


class Towers(Frozen):
    """One tower per task, from the mixture's output to the task's logit."""

    units: tuple[Width, ...] = (32,)
    """Widths of the hidden layers; with none, the tower is a single linear layer."""
    activation: Literal["relu", "gelu", "silu", "tanh"] = "relu"
    """Activation of the hidden layers."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Applied after each hidden layer while training."""


class Attention(Frozen):
    """Of lists with `pooling: attention`; see `model.ranker.attention`."""

    units: Width = 16
    """Hidden units of the network that weighs an entry against the candidate."""
    normalise: bool = False
    """Make the weights of a list's entries add up to 1 (a softmax). Without it, the result also
    says how much of the list resembles the candidate."""


class SequenceBlock(Frozen):
    """Of lists with `pooling: sequence`; see `model.ranker.sequence`."""

    units: Width = 32
    """Hidden units of the layer after the attention."""


class Lists(Frozen):
    """What the model reads of id lists: numbers beside the pooled embedding, and poolings."""

    length: bool = True
    """log(1 + the list's length)."""
    match: bool = True
    """log(1 + how often the candidate's raw id stands in the list), for the user's lists that share
    the vocabulary of a feature of the item. Ids outside the vocabulary match only themselves."""
    attention: Attention = Attention()
    sequence: SequenceBlock = SequenceBlock()


class Wide(Frozen):
    """One weight per task and known id, added to the task's logit; see `model.ranker.wide`.

    Habits of one user or one item are learnt here from a few rows, where shared layers need many.
    """

    penalty: float = Field(1.0, ge=0)
    """Weight of z^2 / count in each row's loss, for an id with weight z and `count` training rows
    in the log: over an epoch each weight pays `penalty` z^2 once, however frequent its id is, and
    more often where negatives are drawn."""
    crosses: int = Field(0, ge=0, le=2**24)
    """Pairs of values that may have weights of their own, such as 8192: what users of a country do
    with a topic. Each pair of id features with vocabularies, one of the user or context and one of
    the item, has them, those with the fewest pairs of values first, as long as all fit; of named
    `pairs` the first. 0: none."""
    pairs: tuple[tuple[str, str], ...] | None = Field(None, examples=[[["country", "topic"]]])
    """The pairs of features that `crosses` is about, the one of the user or the context first, such
    as `[[country, topic]]`. null: all there are."""
    crosses_rate: float = Field(1.0, gt=0, le=100)
    """Learning rate of the weights of pairs, as a multiple of the others', such as 4. A weight
    moves in the steps that have its rows alone, and a pair has few. More than 1 helps where pairs
    have an effect, and costs where they have none."""
    embeddings: float = Field(0.0, ge=0)
    """Weight of |e|^2 / count in each row's loss, for an id of a vocabulary with embedding e: rare
    ids stay near zero, so that a small log is not learnt by heart. 0: embeddings are free."""


class Factors(Frozen):
    """Products of two values' factors, added to the logit; see `model.ranker.factors.term`.

    Such as what a listener makes of a track, or a category of a price: tables that layers of relu
    units learn slowly. They are found after the last epoch, out of what the kept epoch's outputs
    leave unexplained, for pairs of ids with a vocabulary and of numbers, in binary tasks outside
    the later steps of funnels and in regression tasks with a squared loss. Pairs and tasks keep
    them where they save loss on validation beyond chance; others cost nothing.
    """

    width: int = Field(8, ge=1, le=256)
    """Most factors of a value for each task. How many have an effect, and how much, a penalty
    decides, which is chosen on validation: more of them cost memory, and rarely help."""
    pairs: int = Field(4, ge=1)
    """Most pairs of features for each task."""


class ModelConfig(Frozen):
    """embeddings -> shared experts, one gate per task -> one tower per task, plus a wide term.

    Outputs of regression tasks may be blended with a linear term.
    """

    embedding_dim: int = Field(16, ge=1)
    """Width of every embedding."""
    embedding_dims: dict[str, Width] = Field({})
    """Feature -> its own width; features that share a vocabulary share its width."""
    id_dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the ids that training replaces by an unknown one, in candidates and lists, so that
    the model learns what to say of ids that it has never seen. null: for each feature, as
    many as make training lack the share that validation lacks of the vocabulary, and for users and
    items at least 0.1."""
    id_dropouts: dict[str, Annotated[float, Field(ge=0, lt=1)]] = Field({})
    """Feature -> its own share, instead of `id_dropout`."""
    number_clip: float | None = Field(None, gt=0)
    """Standard deviations from the mean beyond which a standardised number counts as so far, such
    as 3: what lies far out is rare, and a linear layer learns it badly. null: numbers as they
    are."""
    lists: Lists = Lists()
    wide: Wide | None = Wide()
    """One weight per task and known id, added to the logit; null: no wide term."""
    factors: Factors | None = None
    """Products of factors of two features, added to the logit where they help; `{}` finds some,
    null: none."""
    linear: bool = True
    """Whether the outputs of regression tasks may be blended with a straight line of the numbers,
    by least squares: what was paid follows the price. A task has one if it saves at least 1 % of
    the squared error of validation, and the standard error of that; no other task is touched.
    Tasks with a loss of their own, such as `quantile`, have none."""
    cross: Cross | None = None
    """Products of features before experts and gates (DCN-v2); null: no cross layers."""
    experts: Experts = Experts()
    gate: GateConfig = Softmax(name="softmax")
    """The gate of every task."""
    gates: dict[str, GateConfig] = Field({})
    """Task -> its own gate, instead of `gate`."""
    shared_gate: Literal["none", "group", "all"] = "none"
    """Which tasks share one gate. `none`: each task has its own (MMoE). `group`: the tasks of a
    group of the contract, such as `engagement`, share one. `all`: there is one (OMoE). Tasks that
    share a gate share its experts too: with a k-sparse gate a row needs at most k experts for each
    gate, so that with many tasks fewer gates leave more experts out."""
    towers: Towers = Towers()
    task_weighting: Literal["labels", "fixed", "uncertainty", "balanced"] = "labels"
    """How the tasks' mean losses are weighted. `fixed`: by the contract's weights alone. `labels`:
    also in proportion to the number of labels, so that a row of a task with few labels weighs as
    much as one of a task with many. `uncertainty`: also by an uncertainty that is learnt for each
    task. `balanced`: at every step the gradients that reach the shared layers get norms in the
    ratio of the contract's weights (`model.ranker.balance`)."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        gates = {"gate": self.gate} | {f"gates.{task}": gate for task, gate in self.gates.items()}
        for where, gate in gates.items():
            _check_gate(where, gate, self.experts.count + self.experts.own)
        if self.shared_gate != "none":
            for given, what in (
                (self.gates, "gates gives a task its own"),
                (self.experts.own, "experts.own gives a task experts that no other may choose"),
                (isinstance(self.gate, Sampled), "a sampled gate learns from one task's loss"),
            ):
                if given:
                    raise contradiction(
                        f"shared_gate: expected none, received {self.shared_gate}, which lets "
                        f"tasks share a gate: {what}"
                    )
        return self

    def gate_names(self, tasks: Mapping[str, Task]) -> dict[str, str]:
        """The name of each task's gate: of the task, of its group, or `all`."""
        if self.shared_gate == "all":
            return dict.fromkeys(tasks, "all")
        return {n: t.group if self.shared_gate == "group" else n for n, t in tasks.items()}


def _check_gate(where: str, gate: Any, experts: int) -> None:
    """Refuse a gate that selects more experts than it has."""
    if isinstance(gate, Hierarchical):
        if experts % gate.num_groups:
            raise contradiction(
                f"{where}.num_groups: expected a divisor of the {experts} experts, received "
                f"{gate.num_groups}"
            )
        _check_gate(f"{where}.primary", gate.primary, gate.num_groups)
        _check_gate(f"{where}.secondary", gate.secondary, experts // gate.num_groups)
        return
    k = getattr(gate, "num_selected", 1)
    if k > experts:
        raise contradiction(f"{where}.num_selected: expected at most {experts}, received {k}")


MONITORS = ("quality", "loss")
"""Values of `train.monitor` besides the tasks' names; a task of such a name cannot be meant."""


class Ranking(Frozen):
    """A term that compares the rows of one request, see `model.ranker.ranking`.

    Rows are then shuffled by request, so that a batch holds whole requests.
    """

    kind: Literal["pairwise", "listwise"]
    """`listwise`: softmax over the request's rows; `pairwise`: each positive row against the
    negative ones."""
    weight: float = Field(0.1, gt=0)
    """Of the term, times the task's own weight."""
    neighbours: int = Field(50, ge=1)
    """Pairwise: each row is compared with up to so many rows of its request, which are drawn anew
    every epoch."""


class Teacher(Frozen):
    """Boosted trees, from which the ranker learns beside the labels, see `model.baselines.teacher`.

    The labels y of the training rows become (1 - share) * y + share * p, where p is the score that
    trees give the row which have seen no row of its user; both on the label's transform.  Some of
    the rows without a label have p in its place (`unlabelled`).
    """

    library: Literal["lightgbm"] = "lightgbm"
    """What makes the trees; it comes with `pip install multigate[baseline]`."""
    share: float = Field(0.5, gt=0, lt=1)
    """How much of a label is the trees' score."""
    regression: bool = True
    """Whether it teaches regression tasks with a squared or huber loss as well."""
    folds: int = Field(4, ge=2, le=20)
    """Parts of the users; the rows of each are scored by trees of all the others."""
    unlabelled: float = Field(4.0, ge=0)
    """How many rows without a label of a task learn the trees' score alone, for each row that has
    one; they are drawn once, among the rows that were shown. So a task with labels of few rows,
    such as what was paid, learns from others too."""
    while_ahead: bool = True
    """Whether it stops teaching a task after an epoch in which the ranker's AUC or explained
    variance on validation is higher than the trees', by more than its standard error: from then on
    the labels alone count."""

    def teaches(self, task: Task) -> bool:
        """Whether it is wanted, and trees predict what the task's score is: a chance or a mean."""
        if task.type == "binary":
            return True
        return self.regression and isinstance(task.loss, Huber | Squared | None)


class TrainConfig(Frozen):
    """Training, with early stopping on the validation split."""

    epochs: int = Field(8, ge=1)
    """Most passes over the training split."""
    batch_size: int = Field(1024, ge=1)
    """Rare labels make the steps of small batches noisy."""
    learning_rate: float = Field(2e-3, gt=0)
    """Learning rate of the first step."""
    decay: Literal["none", "linear", "cosine"] = "cosine"
    """How the learning rate falls from the first step of training to the last."""
    decay_to: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate that remains at the end of its decay."""
    warm_learning_rate: float | None = Field(None, gt=0)
    """Learning rate of a training that starts from a checkpoint; null: `learning_rate`."""
    restart_schedules: bool = False
    """Whether the gates' schedules start over when training starts from a checkpoint. Otherwise
    they go on, so that a converged gate stays as it is."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay (AdamW): at each step the kernels of poolings, cross layers,
    experts and towers lose this share, times the learning rate. Biases, embeddings and gates do
    not decay."""
    clip_norm: float | None = Field(10.0, gt=0)
    """Largest norm of the gradient of all weights together; null does not clip."""
    ema: float | None = Field(0.99, gt=0, lt=1)
    """Decay of averaged weights, such as 0.999: validation measures the average over the latest
    1 / (1 - ema) steps, and the checkpoint holds it. Null keeps the weights of the last step."""
    monitor: str = "quality"
    """What decides which epoch is kept, on the validation split. `quality`: the mean over tasks of
    AUC (binary), explained variance (regression) and pinball skill (loss: quantile), each task
    alike; higher is better. `loss`: the weighted loss. Or a task's name: its own quality alone."""
    patience: int = Field(3, ge=1)
    """Epochs without a better value of the monitor after which training stops; the best epoch's
    weights are kept."""
    seed: int = Field(0, ge=0)
    """Seed of initial weights, shuffling and dropout."""
    embeddings: Literal["rows", "dense"] = "rows"
    """Which rows of the embedding tables a step updates. `rows`: those of the batch's ids, each by
    Adam over its own steps, so that the cost does not grow with the table. `dense`: all rows, as
    Adam is defined: rows that are absent have a gradient of zero, and coast on."""
    moments: Literal["float32", "bfloat16"] = "float32"
    """How the tables' two moments of Adam are stored; bfloat16 takes half the memory."""
    weight: str | None = Field(None, examples=["importance"])
    """Column of the examples that holds the rows' weights in the loss: a number feature, or another
    column. A row without a value has weight 1. Absent: that of `pipeline.log.columns.weight`, if
    the log has one."""
    recency: Duration | None = None
    """Half-life of the rows' weights, such as 7d: a training row counts half as much as one that is
    so much newer. It multiplies `weight`. Null: age does not count."""
    ranking: Ranking | None = None
    """A term for the order within requests, on every binary task; null: none."""
    teacher: Teacher | None = None
    """Trees whose scores stand for part of the labels of training; null: none."""
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Precision of experts and towers; weights, gates, logits and losses stay float32."""
    data_parallel: bool = False
    """Whether to split each batch over the processes that the environment names (TF_CONFIG); on
    JAX, over the devices of one or more processes."""
    save_every: int = Field(2000, ge=1)
    """Steps between two snapshots, from which an interrupted training continues. There is also one
    after every epoch."""
    memory: float = Field(4.0, ge=0)
    """Largest size in GiB of an encoded split in memory; a larger split is streamed from disk."""
    shuffle_rows: int = Field(1 << 18, ge=1)
    """Rows that are shuffled together where the split is streamed; row groups are shuffled too."""
    explosion: float = Field(20.0, gt=1)
    """Training stops when the loss of some steps is this many times its running median."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_lazy_embeddings(cls, values: Any) -> Any:
        if isinstance(values, dict) and "lazy_embeddings" in values:
            raise contradiction(
                f"lazy_embeddings: {values['lazy_embeddings']} is now embeddings: rows (the "
                "default, in the place of true) or embeddings: dense (of false); write one of them"
            )
        return values

    @model_validator(mode="after")
    def _check_together(self) -> "TrainConfig":
        if self.moments != "float32" and self.embeddings != "rows":
            raise contradiction(
                f"moments: expected float32 where embeddings is dense, received {self.moments}; "
                "write embeddings: rows, or leave out moments"
            )
        for key, value in (
            ("precision: mixed_float16", self.precision == "mixed_float16"),
            ("ranking", self.ranking is not None),
        ):
            if self.data_parallel and value:
                raise contradiction(f"{key} and data_parallel cannot go together")
        if self.ranking is not None and self.teacher is not None:
            raise contradiction(
                "ranking and teacher cannot go together: ranking compares labels of 0 and 1"
            )
        return self


Dispatch = Literal["auto", "selected", "fused"]
"""How experts run behind gates that select them for each example."""


CalibrationMethod = Literal["none", "platt", "isotonic", "auto"]
"""See `ExportConfig.calibration`."""


class ExportConfig(Frozen):
    """The SavedModel version."""

    parity_tolerance: float = Field(1e-5, gt=0)
    """Largest relative difference from the Keras model's scores; of a probability p, that of
    p * max(1, -ln p)."""
    hardening_tolerance: float = Field(0.005, ge=0)
    """Largest loss of a task's AUC (or relative rise of its RMSE) by hardening a gate. Judged on
    the validation split: export is refused where the whole 95 % interval of the loss is beyond it;
    the same goes for the other tolerances of metrics."""
    log_loss_tolerance: float = Field(0.05, ge=0)
    """Largest relative rise of a binary task's log loss by hardening a gate or rounding weights.
    The order of the scores may stay the same while the probabilities shift."""
    parity_rows: int = Field(4096, ge=1)
    """Test rows on which the scores are compared with the Keras model's."""
    calibration: CalibrationMethod = "auto"
    """How the tasks' scores are calibrated on the validation split: `platt` by a line on the logit,
    `isotonic` by a rising curve, `auto` by the line unless the curve is clearly better. A task
    stays as it is where calibration does not lower its loss on held-out halves of the split."""
    smearing: bool = False
    """Whether a label that is trained on its logarithm is predicted by its mean instead of about
    its median, where that lowers the RMSE on the validation split. It comes after calibration."""
    weights: Literal["float32", "bfloat16", "int8"] = "float32"
    """How the file stores the experts' kernels and the embedding tables."""
    weights_tolerance: float = Field(0.005, ge=0)
    """Largest loss of a task's AUC (or relative rise of its RMSE) by rounding weights."""
    items: Literal["none", "features", "precomputed"] = "none"
    """Whether the file holds the features of known items, so that a call can send ids alone.
    `precomputed` also holds the items' half of the first layers, E * width numbers per item."""
    dispatch: Dispatch = "auto"
    """How experts run behind gates that select them for each example: `selected` runs each on the
    rows that select it; `fused` runs all on all rows in one product, which is faster where experts
    are few or small; `auto` takes the cheaper by a cost model, and from 16 experts on `selected`,
    unless rows select nearly all. The sparsity report says which and why."""
    xla: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Compile mixture and towers with XLA on batches that are padded to these sizes (ascending).
    Each size is compiled when it first occurs; the warm-up requests have all of them. Larger
    batches are padded to multiples of the last size. Compiled shapes cannot depend on how many rows
    an expert gets: gates that choose per example run every expert on every row, and save nothing.
    """

    @field_validator("xla")
    @classmethod
    def _check_xla(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if list(sizes) != sorted(set(sizes)):
            raise contradiction(f"expected sizes that ascend, received {list(sizes)}")
        return sizes

    @model_validator(mode="after")
    def _check_dispatch(self) -> "ExportConfig":
        if self.xla and self.dispatch == "selected":
            raise contradiction(
                "dispatch: expected auto or fused where xla is set, because compiled shapes cannot "
                "depend on how many rows an expert gets; received selected; leave out one of them"
            )
        return self

    snapshot: Literal["all", "items", "none"] = "all"
    """Whose features, as of the cut-off, a version carries for calls that leave them out: of users
    and items, of items only (where there are many users), or none."""
