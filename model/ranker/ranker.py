"""The ranker: embeddings, shared experts, gates, and one tower per task."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import keras
import numpy as np

from multigate.configs.contract import ID_HASH, Contract, NumberFeature, PositionFeature
from multigate.configs.files import REQUEST
from multigate.configs.sections.model import ModelConfig, Ranking
from multigate.configs.statistics import Statistics
from multigate.model import backend, gates
from multigate.model.backend.workers import Workers
from multigate.model.gates.parts.base import Tensor, derive_seed
from multigate.model.gates.sampled.estimators import SampledLoss
from multigate.model.gates.sampled.router import Sampled
from multigate.model.moe.experts import Expert, make_experts
from multigate.model.moe.mixture import Mixed, Mixture
from multigate.model.moe.own import choices, own_experts
from multigate.model.ranker import funnel
from multigate.model.ranker.balance import balanced
from multigate.model.ranker.cross import Cross
from multigate.model.ranker.embedder import Embedder
from multigate.model.ranker.factors.term import Factors
from multigate.model.ranker.heads.head import Head
from multigate.model.ranker.heads.location import Squared
from multigate.model.ranker.id_dropout import IdDropout
from multigate.model.ranker.linear import Linear
from multigate.model.ranker.loss import (
    Uncertainty,
    masked_mean,
    regularisation,
    row_losses,
    task_loss,
    task_weights,
)
from multigate.model.ranker.make_heads import make_heads
from multigate.model.ranker.ranking import ranking_term
from multigate.model.ranker.towers import PositionTower, Tower
from multigate.model.ranker.wide import Counts, Wide, crosses_of

if TYPE_CHECKING:  # JAX may not be installed
    from multigate.model.backend.devices import Devices

Result = TypeVar("Result")


class Forward(NamedTuple):
    """Results of a forward pass over a batch.

    Attributes:
        logits: by task, (B,) each; of the product in a funnel.
        outputs: by task, (B, K) each, what the head reads.
        mixed: routings and experts evaluated, see `model.moe.mixture.Mixed`.
    """

    logits: dict[str, Tensor]
    outputs: dict[str, Tensor]
    mixed: Mixed


class _Last:
    """What the loss reads of the latest `call`; hidden from Keras, which tracks attributes.

    Attributes:
        forward: its results.
        penalty: of the wide term, a scalar; None outside training or without the term.
        requests: (B,) of the rows, see `model.ranker.ranking`; None where they are not given.
    """

    forward: Forward | None = None
    penalty: Tensor | None = None
    requests: Tensor | None = None


class Ranker(keras.Model):
    """Encoded features to one logit per task.

    Export uses its parts one by one: `embed`, `mixture`, `towers` (by task), `shift`, `logits` and,
    if the contract has a position feature, `position_tower`, which is used in training only.

    The logit of a regression task is the transformed, standardised label, see `model.ranker.heads`;
    `model.ranker.scores` turns logits into scores.

    Attributes:
        gate_names: of the mixture's gates: the tasks' names, unless tasks share gates.
        gate_of: by task, the number of its gate.

    Args:
        contract: features and tasks.
        config: widths, experts, gates, towers.
        rows: number of rows of each embedding table, by owner (`Encoder.rows`).
        statistics: of the training split; the towers start at its base rates.
        seed: all random parts derive their own seeds from it.
        counts: known ids with weights in the wide term, see `Wide`.
        id_dropout: share of the ids that training replaces by an unknown one, by feature.
        ranking: the term for the order within requests, if training has one.
        precision: dtype policy of the experts and of the towers' hidden layers.  Embeddings,
            gates, logits and losses are always float32, because in half precision neighbouring
            logits tie.
    """

    def __init__(
        self,
        contract: Contract,
        config: ModelConfig,
        rows: Mapping[str, int],
        statistics: Statistics,
        seed: int = 0,
        precision: str = "float32",
        counts: Counts | None = None,
        id_dropout: Mapping[str, float] | None = None,
        ranking: Ranking | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**{"name": "ranker"} | kwargs)
        self.contract = contract
        self.id_dropout = IdDropout(contract, id_dropout or {}, seed, name="id_dropout")
        self.wide, self.wide_penalty, self.embedding_penalty = None, 0.0, 0.0
        if config.wide is not None:
            crosses = crosses_of(contract, counts or {}, config.wide)
            rows_of_log = statistics.rows.get("train", 1)
            self.wide = Wide(counts or {}, len(contract.tasks), crosses, rows_of_log, name="wide")
            self.wide_penalty = config.wide.penalty
            self.embedding_penalty = config.wide.embeddings
        self.embedder = Embedder(contract, config, rows, seed, name="embedder")
        self.config = config
        width = sum(self.embedder.widths.values())
        self.cross = None
        if config.cross is not None:
            self.cross = Cross(
                width,
                config.cross.layers,
                config.cross.rank,
                derive_seed(seed, "cross"),
                name="cross",
            )
        of_task = config.gate_names(contract.tasks)
        self.gate_names = list(dict.fromkeys(of_task.values()))
        self.gate_of = {task: self.gate_names.index(name) for task, name in of_task.items()}
        self.mixture = Mixture(
            _make_experts(config, contract, seed, precision),
            [_make_gate(config, name, seed) for name in self.gate_names],
            choices(config.experts.count, config.experts.own, len(self.gate_names)),
            name="mixture",
        )
        self.mixture.build((None, width))
        self.mixture.built = True
        self.heads = make_heads(contract, statistics)
        self.linear = _make_linear(contract, self.embedder, self.heads) if config.linear else None
        self.towers = {
            name: Tower(
                config.experts.units[-1],
                config.towers.units,
                config.towers.activation,
                config.towers.dropout,
                bias=head.start,
                seed=derive_seed(seed, "tower", name),
                precision=precision,
                name=f"tower_{name}",
            )
            for name, head in self.heads.items()
        }
        self.factors: Factors | None = None
        """What `model.evaluation.factors` found after the training; none while it runs."""
        self.position_tower = None
        for feature in contract.features.values():
            if isinstance(feature, PositionFeature):
                self.position_tower = PositionTower(
                    feature.max_position + 2, len(contract.tasks), name="position_tower"
                )
        self.estimators = {
            task: SampledLoss(name=f"estimator_{task}")
            for task, number in self.gate_of.items()
            if isinstance(self.mixture.gates[number], Sampled)
        }
        self.task_weights = task_weights(contract, statistics, config.task_weighting)
        self.balances = config.task_weighting == "balanced"
        self.uncertainty = None
        if config.task_weighting == "uncertainty":
            self.uncertainty = Uncertainty(len(contract.tasks), name="uncertainty")
        self.trackers = {task: keras.metrics.Mean(name=f"{task}_loss") for task in contract.tasks}
        self.regularisation_tracker = keras.metrics.Mean(name="regularisation")
        # A mean over steps; the tasks' own ones weigh a step by its labels.
        self.guarded_tracker = keras.metrics.Mean(name="guarded")
        self.ranking = ranking
        self.ranking_tracker = None if ranking is None else keras.metrics.Mean(name="ranking")
        self.workers: Workers | None = None
        """The processes that train together on TensorFlow; set by the training, else None."""
        self.devices: Devices | None = None
        """The devices that train together on JAX; set by the training, else None."""
        self.validates_positions = False
        """Whether the position tower is also used outside training; set by the training."""
        self._last = _Last()
        self.built = True
        # No XLA on TensorFlow, where dispatch has dynamic shapes.
        self.supports_jit = backend.name() != "tensorflow"

    def own_experts(self) -> dict[str, list[int]]:
        """The experts of each task alone, by their number in the mixture."""
        shared, own = self.config.experts.count, self.config.experts.own
        return {task: own_experts(shared, own, t) for t, task in enumerate(self.contract.tasks)}

    def row_variables(self) -> list[keras.Variable]:
        """The variables of the embedding tables, of which a batch reads some rows."""
        tables = list(self.embedder.shared.values())
        if self.wide is not None and self.wide.shared is not None:
            tables.append(self.wide.shared)
        return [table.variable for table in tables]

    def row_counts(self) -> list[int]:
        """How many rows of each of `row_variables` an example reads in training."""
        counts = [self.embedder.rows_read(table) for table in self.embedder.shared.values()]
        if self.wide is not None and self.wide.shared is not None:
            counts.append(len(self.wide.tables))
        return counts

    def train_step(self, *arguments: Any) -> Any:
        """Keras's step; on JAX with gradients of the batch's rows, if the optimiser takes them.

        Args:
            arguments: the batch on TensorFlow; state and batch on JAX.
        """
        if backend.name() == "tensorflow" or not getattr(self.optimizer, "tables", None):
            return super().train_step(*arguments)
        from multigate.model.backend.row_step import train_step

        tables = list(zip(self.row_variables(), self.row_counts(), strict=True))
        return train_step(self, tables, *arguments)

    def make_train_function(self, force: bool = False) -> Any:
        """Keras's; on JAX several steps of one execution are one program."""
        if backend.name() == "tensorflow" or self.steps_per_execution == 1:
            return super().make_train_function(force)
        if self.train_function is None or force:
            from multigate.model.backend.steps_jax import steps_at_once

            self.train_function: Any = steps_at_once(self)
        return None

    def embed(self, encoded: Mapping[str, Tensor], names: Iterable[str] | None = None) -> Tensor:
        """The embedder's output (B, d), or its columns of some features, see `Embedder`."""
        return self.embedder(encoded, names=names)

    def _of_ids(self, embedded: Tensor) -> dict[str, Tensor]:
        """The columns (B, d) of each id that has a weight in the wide term."""
        assert self.wide is not None
        found, first = {}, 0
        for name, width in self.embedder.widths.items():
            if name in self.wide.sizes:
                found[name] = embedded[:, first : first + width]
            first += width
        return found

    def mixture_input(
        self, encoded: Mapping[str, Tensor], embedded: Tensor | None = None
    ) -> Tensor:
        """The experts' and gates' input (B, D); `embedded` is what `embed` found, if known."""
        x = self.embed(encoded) if embedded is None else embedded
        return x if self.cross is None else self.cross(x)

    def ids(self, encoded: Mapping[str, Tensor]) -> Tensor | None:
        """The users' hashed ids (B,), for gates that route by id; None where they are absent."""
        return encoded.get(self.contract.user + ID_HASH)

    def forward(
        self,
        encoded: Mapping[str, Tensor],
        training: bool = False,
        positions: bool | None = None,
        wide: Tensor | None = None,
        embedded: Tensor | None = None,
    ) -> Forward:
        """Compute logits and routings; ids are taken as they are, without id dropout.

        Args:
            encoded: arrays by feature (see `model.data.encoding`), B rows each.
            training: whether dropout and the gates' noise are on.
            positions: whether to use the position tower; the same as `training` if None.
            wide: what `Wide.look_up` found, if that is known already.
            embedded: what `embed` found, likewise.
        """
        embedded = self.embed(encoded) if embedded is None else embedded
        x = self.mixture_input(encoded, embedded)
        mixed = self.mixture(x, ids=self.ids(encoded), training=training)
        representations = [mixed.outputs[number] for number in self.gate_of.values()]
        if training and self.balances:
            weights = [task.weight for task in self.contract.tasks.values()]
            representations = balanced(representations, weights)
        outputs = {
            task: self.towers[task](representation, training=training)
            for task, representation in zip(self.contract.tasks, representations, strict=True)
        }
        if self.wide is not None:
            outputs = self.shift(outputs, self.wide(encoded, wide))
        if not training and self.linear is not None and self.linear.active:
            outputs = self._blended(outputs, embedded)
        if self.factors is not None:
            outputs = self.shift(outputs, self.factors(encoded))
        position = self.contract.position
        positions = training if positions is None else positions
        if positions and self.position_tower is not None and position is not None:
            outputs = self.shift(outputs, self.position_tower(encoded[position]))
        return Forward(self.logits(outputs), outputs, mixed)

    def shift(self, outputs: Mapping[str, Tensor], effect: Tensor) -> dict[str, Tensor]:
        """Add effects (B, T) to the outputs (B, K) by task, where the heads allow it."""
        shifted = {}
        columns = keras.ops.split(effect, len(outputs), axis=1)  # T of (B, 1)
        for (task, output), column in zip(outputs.items(), columns, strict=True):
            where = np.array(self.heads[task].shifted, np.float32)
            shifted[task] = output + (column if where.all() else column * where)
        return shifted

    def _blended(self, outputs: dict[str, Tensor], embedded: Tensor) -> dict[str, Tensor]:
        """The outputs (B, K) by task with the linear term; `embedded` is what `embed` found."""
        assert self.linear is not None
        added, names = self.linear(embedded), list(outputs)
        lines = {
            names[t]: outputs[names[t]] * self.linear.deep[t] + added[:, t : t + 1]
            for t in self.linear.tasks
        }
        return outputs | lines

    def logits(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Logits (B,) by task from the heads' outputs (B, K), joined along funnels."""
        found = {task: self.heads[task].logit(output) for task, output in outputs.items()}
        return funnel.joint(self.contract, found)

    @cached_property
    def infer(self) -> Callable[[Mapping[str, Tensor]], Forward]:
        """`forward` outside training, for many batches; compiled on JAX.

        Without it JAX would compile every branch of the dispatch again at every call.  On
        TensorFlow, compiling takes longer than it saves in an evaluation.
        """
        return self.forward if backend.name() == "tensorflow" else self.jitted(self.forward)

    def jitted(self, function: Callable[[dict[str, Tensor]], Result]) -> Callable[..., Result]:
        """A function of encoded features, compiled by JAX; it may read this ranker's variables.

        It reads them at each call: a later change of the weights counts.
        """
        import jax

        def compute(state: list[Tensor], encoded: dict[str, Tensor]) -> Result:
            mapping = zip(self.variables, state, strict=True)
            with keras.StatelessScope(state_mapping=list(mapping)):
                return function(encoded)

        # Every process gets the whole results.
        compiled = jax.jit(compute, out_shardings=self.devices and self.devices.whole)
        return lambda encoded: compiled([v.value for v in self.variables], dict(encoded))

    def validate_on(
        self, encoded: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Logits (B,) by task, and outputs (B, K) of heads with several.

        Args:
            encoded: arrays by feature, B rows each.
        """
        if self.devices is not None:
            encoded = self.devices.shard(encoded)
        found = self.forward(encoded, False, self.validates_positions)
        several = {task: o for task, o in found.outputs.items() if len(self.heads[task].start) > 1}
        return found.logits, several

    def call(self, encoded: Mapping[str, Tensor], training: bool = False) -> dict[str, Tensor]:
        """Logits (B,) by task; arguments as in `forward`."""
        if self.devices is not None:
            encoded = self.devices.shard(encoded)
        self._last.penalty, self._last.requests = None, encoded.get(REQUEST)
        wide, embedded = None, None
        if training:
            encoded = self.id_dropout(encoded)
            if self.wide is not None:
                wide = self.wide.look_up(encoded)
                self._last.penalty = self.wide_penalty * self.wide.penalty(encoded, wide)
                if self.embedding_penalty:
                    embedded = self.embed(encoded)
                    paid = self.wide.embedding_penalty(encoded, self._of_ids(embedded))
                    self._last.penalty += self.embedding_penalty * paid
        positions = training or self.validates_positions
        forward = self.forward(encoded, training, positions, wide, embedded)
        self._last.forward = forward
        return forward.logits

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Tensor:
        """The loss of `model.ranker.loss`, for the batch that `call` has just seen.

        Args:
            x: not read.
            y: (B, T) targets in the contract's order of tasks, NaN where masked.
            y_pred: logits (B,) by task, which are the outputs of heads with one output.
            sample_weight: (B,) weights of the rows; None if all are equal.
            training: whether to add regularisation and to train sampled routers.
        """
        ops = keras.ops
        assert self._last.forward is not None
        _, outputs, mixed = self._last.forward
        workers = self.workers if training else None
        total = ops.zeros(())
        found = []  # losses and masks by task
        for t, (name, head) in enumerate(self.heads.items()):
            # The joint logit of a funnel, not the tower's output.
            output = y_pred[name][:, None] if len(head.start) == 1 else outputs[name]
            losses, mask = row_losses(head, output, y[:, t])
            found.append((losses, mask if sample_weight is None else mask * sample_weight))
        counts = [ops.sum(mask) for _, mask in found]
        shares = [1.0] * len(found) if workers is None else workers.fractions(counts)
        for t, name in enumerate(self.contract.tasks):
            losses, mask = found[t]
            if training:
                estimator = self.estimators.get(name)
                routing = mixed.routings[self.gate_of[name]]
                value = task_loss(losses, mask, routing, estimator)
                if self.uncertainty is not None:
                    # A batch without labels of the task says nothing about its uncertainty.
                    known = ops.cast(counts[t] > 0, value.dtype)
                    value = known * self.uncertainty(value, task=t)
            else:
                value = masked_mean(losses, mask)
            total = total + self.task_weights[name] * value * shares[t]
        if training and self.ranking is not None:
            term = self._ranking_term(y_pred, y, [mask for _, mask in found])
            total = total + self.ranking.weight * term
        means = [masked_mean(losses, mask) for losses, mask in found]
        terms = ops.zeros(())
        if training:
            terms = regularisation(mixed.routings)
            if self._last.penalty is not None:
                terms = terms + self._last.penalty
            terms = terms / (1 if workers is None else workers.size)
            total = total + terms
        if workers is not None:
            # The gradient stays that of this worker's rows; the reported numbers are of all rows.
            parts = [mean * share for mean, share in zip(means, shares, strict=True)]
            whole, terms, *sums = workers.all_reduce([total, terms, *parts, *counts], key=2)
            total = total + ops.stop_gradient(whole - total)
            means, counts = sums[: len(means)], sums[len(means) :]
        for name, mean, count in zip(self.contract.tasks, means, counts, strict=True):
            # Weighted by the number of labels, so that an epoch's mean is the mean over rows.
            self.trackers[name].update_state(mean, count)
        if training:
            self.regularisation_tracker.update_state(terms)
            self.guarded_tracker.update_state(self._guarded(means, counts) + terms)
        return total

    def _guarded(self, means: Sequence[Tensor], counts: Sequence[Tensor]) -> Tensor:
        """The tasks' losses of a batch above the lowest that they can be, weighted; a scalar.

        Args:
            means: of each task's losses in this batch.
            counts: of each task's labels in it; a task without any has no part.
        """
        total = keras.ops.zeros(())
        for (name, head), mean, count in zip(self.heads.items(), means, counts, strict=True):
            above = keras.ops.where(count > 0, mean - head.least_loss, 0.0)
            total = total + self.task_weights[name] * above
        return total

    def _ranking_term(
        self, logits: Mapping[str, Tensor], y: Tensor, masks: Sequence[Tensor]
    ) -> Tensor:
        """Ranking terms of the binary tasks of a batch, with the tasks' weights, a scalar."""
        assert self.ranking is not None
        assert self.ranking_tracker is not None
        requests = self._last.requests
        assert requests is not None, "train.ranking needs examples with their requests"
        total = keras.ops.zeros(())
        for t, (name, task) in enumerate(self.contract.tasks.items()):
            if task.type == "binary" and task.weight > 0:
                term = ranking_term(self.ranking, logits[name], y[:, t], masks[t], requests)
                total = total + self.task_weights[name] * term
        self.ranking_tracker.update_state(total)
        return total


def _make_experts(
    config: ModelConfig, contract: Contract, seed: int, precision: str
) -> list[Expert]:
    """The shared experts, then each task's own, if tasks have any."""
    options = config.experts
    layers = (options.units, options.activation, options.dropout)
    found = make_experts(options.count, *layers, derive_seed(seed, "experts"), precision)
    if options.own:
        for task in contract.tasks:
            own_seed = derive_seed(seed, "experts", task)
            found += make_experts(options.own, *layers, own_seed, precision, f"{task}_expert")
    return found


def _make_linear(
    contract: Contract, embedder: Embedder, heads: Mapping[str, Head]
) -> Linear | None:
    """Lines from the numbers to the tasks that learn a mean; None without either."""
    numbers = [
        name
        for name, feature in embedder.features.items()
        if isinstance(feature, NumberFeature) and name not in embedder.owners
    ]
    lines = [place for place, name in enumerate(contract.tasks) if isinstance(heads[name], Squared)]
    if not numbers or not lines:
        return None
    return Linear(embedder.widths, numbers, len(contract.tasks), lines, name="linear")


def _make_gate(config: ModelConfig, name: str, seed: int) -> gates.Gate:
    """The gate of a task, or of tasks that share one, with a seed of its own."""
    options = config.gates.get(name, config.gate).options()
    return gates.make(
        num_experts=config.experts.count + config.experts.own,
        seed=derive_seed(seed, "gate", name),
        **options,
    )
