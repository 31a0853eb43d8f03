"""Adam with one fused kernel per variable, decoupled weight decay, clipping, averaged weights.

The optimiser's step is bound by memory bandwidth.  It grows with the number of experts, also of
those that did not run: every variable, both its moments and its gradient are read and written.
Keras's Adam makes about ten passes over them; TensorFlow's fused kernel makes one.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

from multigate.configs.sections.model import TrainConfig
from multigate.model import backend
from multigate.model.backend.rows import RowGradient, merge
from multigate.model.backend.workers import Workers
from multigate.model.checkpoints.weights import to_numpy
from multigate.model.optimizer.row_adam import (
    Step,
    TableState,
    hide_averages,
    show_averages,
    update,
)
from multigate.model.ranker.ranker import Ranker

Tensor = Any


@keras.saving.register_keras_serializable("multigate")
class Adam(keras.optimizers.Adam):
    """`keras.optimizers.Adam`, equal up to rounding and faster on TensorFlow.

    With m, v the moments, g the gradient and t the step, counted from 1 (Kingma and Ba 2015):

        m += (g - m) (1 - beta_1);  v += (g^2 - v) (1 - beta_2)
        variable -= learning_rate sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)

    Every variable is updated at every step, including embedding rows that the batch does not
    contain and experts that no row chose: their gradient is zero, but their decaying moments still
    move them.  That is Adam's definition.

    `update_rows` names the embedding tables in which a step updates the batch's rows only; see
    `model.optimizer.row_adam`.  `multiply_rate` gives rows of a table another learning rate.

    `global_clipnorm` bounds the norm of the whole gradient, after the sum over workers.  A table's
    rows that occur several times in a batch count with the sum of their gradients.

    `average` keeps an exponential moving average of every trained variable beside it.  After step
    t, counted from 0,

        average += (1 - min(average, (1 + t) / (10 + t))) (variable - average)

    and at t = 0 it is the variable itself.  The bound lets short trainings forget their first steps
    (TensorFlow's `ExponentialMovingAverage` does the same).  Keras's `use_ema` is not used: at the
    end of every `fit`, that is of every epoch here, it overwrites the trained weights.

    Args:
        learning_rate: a number or a `keras.optimizers.schedules.LearningRateSchedule`.
        average: decay of the averaged weights, in [0, 1); None keeps none.
        moments: how the moments of the tables of `update_rows` are stored, float32 or bfloat16.
        options: the other arguments of `keras.optimizers.Adam`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        average: float | None = None,
        moments: str = "float32",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        self.average = average
        self.moments = moments
        self.averages: list[Any] = []
        """The averaged weights, in the order of the trained variables; empty without `average`.
        None for tables of `update_rows`, which have theirs in `tables`."""
        self.tables: dict[str, TableState] = {}
        """By the index of each table's variable among the trained ones, as text."""
        self.workers: Workers | None = None
        """Processes over which gradients are summed; None for this process alone."""
        self._of_rows: set[Any] = set()
        self._multipliers: dict[Any, tuple[float, int]] = {}
        self._apart: list[Any] | None = None

    def update_rows(self, tables: Iterable[Any]) -> None:
        """Update only the batch's rows of these variables (N, d); call it before `build`.

        Raises:
            ValueError: the optimiser has an option that reads whole variables.
        """
        for option in (
            "amsgrad",
            "clipnorm",
            "clipvalue",
            "use_ema",
            "gradient_accumulation_steps",
        ):
            if getattr(self, option):
                raise ValueError(
                    f"{option}: expected none where only a batch's rows are updated, received "
                    f"{getattr(self, option)}; use `average` and `global_clipnorm`"
                )
        self._of_rows = {self._var_key(variable) for variable in tables}

    def multiply_rate(self, table: Any, by: float, first: int = 0) -> None:
        """Update a table's rows, from row `first` on, with `by` times the learning rate."""
        self._multipliers[self._var_key(table)] = by, first

    def build(self, variables: list[Any]) -> None:
        """Make the optimiser's variables for the variables to train."""
        super().build(variables)
        if self.average is not None:
            self.averages = self.add_optimizer_variables(variables, "average_of")
        for index, variable in enumerate(variables):
            if self._var_key(variable) in self._of_rows:
                averages = self.average is not None
                self.tables[str(index)] = TableState(
                    variable, self.add_variable, averages, self.moments
                )

    def add_optimizer_variables(
        self, trainable_variables: list[Any], name: Any, initializer: Any = "zeros"
    ) -> Any:
        """As Keras's, with None for the tables of `update_rows`: they have a `TableState`."""
        others = [v for v in trainable_variables if self._var_key(v) not in self._of_rows]
        found = super().add_optimizer_variables(others, name, initializer)
        lists = []
        for made in [found] if isinstance(name, str) else found:
            left = iter(made)
            lists.append(
                [
                    None if self._var_key(v) in self._of_rows else next(left)
                    for v in trainable_variables
                ]
            )
        return lists[0] if isinstance(name, str) else tuple(lists)

    @contextmanager
    def rows_apart(self, gradients: list[Any]) -> Iterator[list[Any]]:
        """Within it, `apply` takes the values of row gradients alone, as plain tensors.

        An optimiser around this one can then compute with them as with any gradient.

        Args:
            gradients: of all variables; `RowGradient` and `tf.IndexedSlices` are row gradients.

        Yields:
            The same, where row gradients are their values (R, d).
        """
        self._apart = gradients
        try:
            yield [_values(g) for g in gradients]
        finally:
            self._apart = None

    def apply(self, grads: list[Tensor], trainable_variables: Any = None) -> None:
        """Update the variables by the gradients, summed over all workers."""
        variables = list(trainable_variables or self._trainable_variables)
        if not self.built:
            self.build(variables)
        if self._apart is not None:
            grads = [_with_values(g, values) for g, values in zip(self._apart, grads, strict=True)]
        grads = [self._prepare(g, v) for g, v in zip(grads, variables, strict=True)]
        if self.workers is not None:
            grads = self._sum_over_workers(grads, variables)
        super().apply(grads, trainable_variables)

    def _prepare(self, gradient: Any, variable: Any) -> Any:
        """A gradient as `RowGradient` for a table of `update_rows`, else dense."""
        if gradient is None or isinstance(gradient, RowGradient):
            return gradient
        size = variable.shape[0] if len(variable.shape) else 1
        if not hasattr(gradient, "indices"):  # tf.IndexedSlices, on TensorFlow only
            if self._var_key(variable) not in self._of_rows:
                return gradient
            return RowGradient(keras.ops.arange(size, dtype="int32"), gradient)
        if self._var_key(variable) in self._of_rows:
            return merge(gradient.indices, gradient.values, size)
        import tensorflow as tf

        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, size)

    def _sum_over_workers(self, grads: list[Any], variables: list[Any]) -> list[Any]:
        """Gradients summed over the workers; of tables, they exchange the touched rows only."""
        assert self.workers is not None
        dense = [i for i, g in enumerate(grads) if g is not None and not isinstance(g, RowGradient)]
        of_rows = [i for i, g in enumerate(grads) if isinstance(g, RowGradient)]
        totals = self.workers.all_reduce([grads[i] for i in dense], key=3)
        gathered = self.workers.all_gather(
            [(grads[i].rows, grads[i].values) for i in of_rows], key=4
        )
        found = list(grads)
        for index, total in zip(dense, totals, strict=True):
            found[index] = total
        for index, (rows, values) in zip(of_rows, gathered, strict=True):
            found[index] = merge(rows, values, variables[index].shape[0])
        return found

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Clip by the global norm; a table's rows count with the sum of their gradients."""
        if not self.global_clipnorm:
            return super()._clip_gradients(grads)
        ops = keras.ops
        norm = ops.sqrt(sum(ops.sum(ops.square(_values(g))) for g in grads if g is not None))
        scale = self.global_clipnorm / ops.maximum(norm, self.global_clipnorm)
        return [None if g is None else _scaled(g, scale) for g in grads]

    def _backend_apply_gradients(self, grads: list[Tensor], trainable_variables: list[Any]) -> None:
        """Update the variables, then their averages."""
        super()._backend_apply_gradients(grads, trainable_variables)
        if self.average is None:
            return
        ops = keras.ops
        step = ops.cast(self.iterations, "float32")
        decay = ops.minimum(self.average, (1.0 + step) / (10.0 + step))
        keep = ops.where(step > 0, decay, 0.0)
        for variable, average in zip(self._trainable_variables, self.averages, strict=True):
            if average is None:
                continue
            share = ops.cast(1.0 - keep, average.dtype)
            average.assign(average + share * (ops.cast(variable, average.dtype) - average))

    def _backend_update_step(
        self, grads: list[Tensor], trainable_variables: list[Any], learning_rate: Tensor
    ) -> None:
        """Compute the scalars of the step once, then update each variable."""
        dense = []
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            if not isinstance(gradient, RowGradient):
                dense.append((gradient, variable))
                continue
            index = self._get_variable_index(variable)
            options = (self.beta_1, self.beta_2, self.epsilon, self.average)
            rate = self._rate_of(variable, learning_rate, gradient.rows)
            step = Step(keras.ops.cast(self.iterations, "int32"), rate, *options)
            update(variable, self.tables[str(index)], gradient, step, seed=index)
        if backend.name() == "tensorflow" and not self.amsgrad:
            step = keras.ops.cast(self.iterations + 1, "float32")
            powers = [keras.ops.power(beta, step) for beta in (self.beta_1, self.beta_2)]
            learning_rate = (learning_rate, *powers)  # passed on to `update_step`
        if dense:
            super()._backend_update_step(*map(list, zip(*dense, strict=True)), learning_rate)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        """Update one variable; `learning_rate` comes from `_backend_update_step`."""
        multiplied = self._var_key(variable) in self._multipliers
        if multiplied or not isinstance(learning_rate, tuple):  # TensorFlow's kernel takes one rate
            rate = learning_rate[0] if isinstance(learning_rate, tuple) else learning_rate
            if multiplied:
                rate = self._rate_of(variable, rate)
            super().update_step(gradient, variable, rate)
            return
        import tensorflow as tf

        rate, power_1, power_2 = (tf.cast(scalar, variable.dtype) for scalar in learning_rate)
        index = self._get_variable_index(variable)
        m, v = self._momentums[index].value, self._velocities[index].value
        gradient = tf.cast(gradient, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=power_1,
            beta2_power=power_2,
            lr=rate,
            beta1=tf.cast(self.beta_1, variable.dtype),
            beta2=tf.cast(self.beta_2, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=gradient,
        )

    def _rate_of(self, table: Any, rate: Tensor, rows: Tensor | None = None) -> Tensor:
        """The learning rate of a table's rows (U,), or of all: a scalar, or (U, 1)."""
        if self._var_key(table) not in self._multipliers:
            return rate
        if rows is None:
            rows = keras.ops.arange(table.shape[0], dtype="int32")
        by, first = self._multipliers[self._var_key(table)]
        return rate * keras.ops.where(rows >= first, by, 1.0)[:, None]

    def get_config(self) -> dict[str, Any]:
        """Arguments of the same optimiser, without what `update_rows`, `multiply_rate` named."""
        return super().get_config() | {"average": self.average, "moments": self.moments}


@keras.saving.register_keras_serializable("multigate")
class LossScaling(keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` around `Adam`, for row gradients too.

    Keras's looks for numbers that are not finite in an array as large as the table, and does not
    know `RowGradient`.
    """

    @property
    def tables(self) -> dict[str, TableState]:
        """As in `Adam`."""
        return self.inner_optimizer.tables

    def apply(self, grads: list[Any], trainable_variables: Any = None) -> None:
        """Update the variables by the gradients of the scaled loss, if all are finite."""
        with self.inner_optimizer.rows_apart(grads) as values:
            super().apply(values, trainable_variables)

    def stateless_apply(
        self, optimizer_variables: list[Tensor], grads: list[Any], trainable_variables: list[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """`apply` as a function: the new values of both kinds of variables."""
        with self.inner_optimizer.rows_apart(grads) as values:
            return super().stateless_apply(optimizer_variables, values, trainable_variables)


def _values(gradient: Any) -> Tensor:
    return getattr(gradient, "values", gradient)


def _with_values(gradient: Any, values: Tensor) -> Any:
    """A gradient of the same rows with other values."""
    if isinstance(gradient, RowGradient):
        return gradient._replace(values=values)
    if not hasattr(gradient, "indices"):
        return values
    return type(gradient)(values, gradient.indices, gradient.dense_shape)


def _scaled(gradient: Any, scale: Tensor) -> Any:
    if isinstance(gradient, RowGradient):
        return gradient._replace(values=gradient.values * scale)
    return gradient * keras.ops.cast(scale, gradient.dtype)


def decayed_variables(ranker: Ranker) -> list[Any]:
    """The variables that weight decay shrinks: the kernels of all layers but gates.

    Not biases, which fit base rates.  Not tables: a decay at every step would shrink rare rows,
    which get few gradients, the most.  Not gates: they have regularisers of their own, and smaller
    kernels would make a gate softer while it is to become sparse.
    """
    poolings = [*ranker.embedder.attentions.values(), *ranker.embedder.sequences.values()]
    crosses = [] if ranker.cross is None else [ranker.cross]
    layers: list[Any] = [*poolings, *crosses, *ranker.towers.values()]
    return ranker.mixture.kernels + [
        variable
        for layer in layers
        for variable in layer.trainable_variables
        if len(variable.shape) > 1 and variable.name != "positions"
    ]


def make_optimizer(
    options: TrainConfig,
    steps: int,
    warm: bool = False,
    workers: Workers | None = None,
    ranker: Ranker | None = None,
) -> keras.optimizers.Optimizer:
    """The optimiser of a training with its learning rate schedule.

    Args:
        options: of the training.
        steps: of one epoch; a decay ends with the last of `epochs` epochs.
        warm: whether training starts from a checkpoint.
        workers: processes over which gradients are summed; None for this process alone.
        ranker: its `decayed_variables` get weight decay; None applies none.
    """
    rate: Any = options.learning_rate
    if warm and options.warm_learning_rate is not None:
        rate = options.warm_learning_rate
    schedules = keras.optimizers.schedules
    total = steps * options.epochs
    if options.decay == "cosine":
        rate = schedules.CosineDecay(rate, total, alpha=options.decay_to)
    elif options.decay == "linear":
        rate = schedules.PolynomialDecay(rate, total, rate * options.decay_to)
    decays = ranker is not None and options.weight_decay > 0
    optimizer = Adam(
        rate,
        average=options.ema,
        moments=options.moments,
        weight_decay=options.weight_decay if decays else None,
        global_clipnorm=options.clip_norm,
    )
    optimizer.workers = workers
    if ranker is not None and options.embeddings == "rows":
        optimizer.update_rows(ranker.row_variables())
    if ranker is not None:
        _move_pairs_further(optimizer, ranker)
    if ranker is not None and decays:
        decayed = {id(variable) for variable in decayed_variables(ranker)}
        optimizer.exclude_from_weight_decay(
            [variable for variable in ranker.trainable_variables if id(variable) not in decayed]
        )
    if options.precision == "mixed_float16":
        # Without scaling, small gradients would underflow.
        return LossScaling(optimizer)
    return optimizer


def _move_pairs_further(optimizer: Adam, ranker: Ranker) -> None:
    """Give the weights of pairs their own learning rate; they are the last of the wide term's."""
    wide, options = ranker.wide, ranker.config.wide
    if wide is None or wide.shared is None or options is None or options.crosses_rate == 1:
        return
    if wide.crosses:
        first = min(wide.tables[cross].first for cross in wide.crosses)
        optimizer.multiply_rate(wide.shared.variable, options.crosses_rate, first)


@contextmanager
def averaged(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> Iterator[None]:
    """Within it, the variables hold their averages, if the optimiser keeps some.

    Afterwards they hold, bit for bit, what they held before: training goes on from there.

    Args:
        optimizer: that `make_optimizer` returned, built.
        variables: that it was built on, in the same order.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaling
    if not inner.averages:
        yield
        return
    trained = {}
    for index, (variable, average) in enumerate(zip(variables, inner.averages, strict=True)):
        state = inner.tables.get(str(index))
        if state is not None:
            # No copy: it would take as much memory as the table.
            show_averages(variable, state, int(inner.iterations), inner.average)
        else:
            trained[index] = to_numpy(variable)
            variable.assign(average.value)
    try:
        yield
    finally:
        for index, variable in enumerate(variables):
            if index in trained:
                variable.assign(trained[index])
            else:
                hide_averages(variable, inner.tables[str(index)])
