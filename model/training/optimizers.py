"""Adam with one fused kernel per variable, decoupled weight decay, clipping, averaged weights.

The optimiser's step is bound by memory bandwidth.  It grows with the number of experts, also of
those that did not run: every variable, both its moments and its gradient are read and written.
Keras's Adam makes about ten passes over them; TensorFlow's fused kernel makes one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from multigate.configs.sections.model import TrainConfig
from multigate.model import backend
from multigate.model.backend.workers import Workers
from multigate.model.checkpoints.weights import to_numpy
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
    move them.  That is Adam's definition, and the default here.

    With `lazy=True` only the embedding rows in the batch are updated, with their moments (rows that
    occur twice have their gradients summed first).  The cost is then that of the batch's rows
    instead of the table's.  It is another algorithm: a rare row keeps its momentum until its next
    batch.  It applies to gradients that are `tf.IndexedSlices`, that is to `keras.layers.Embedding`
    on TensorFlow; all other variables are updated as above.

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
        lazy: update only the embedding rows in the batch.
        average: decay of the averaged weights, in [0, 1); None keeps none.
        options: the other arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: `lazy` with a backend other than TensorFlow (whose gradients are dense) or
            with `amsgrad`.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        lazy: bool = False,
        average: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        if lazy and (backend.name() != "tensorflow" or self.amsgrad):
            raise ValueError(
                "lazy: expected the TensorFlow backend and amsgrad=False, "
                f"received backend {backend.name()!r} and amsgrad={self.amsgrad}"
            )
        self.lazy = lazy
        self.average = average
        self.averages: list[Any] = []
        """The averaged weights, in the order of the trained variables; empty without `average`."""
        self.workers: Workers | None = None
        """Processes over which gradients are summed; None for this process alone."""

    def build(self, variables: list[Any]) -> None:
        """Make the optimiser's variables for the variables to train."""
        super().build(variables)
        if self.average is not None:
            self.averages = self.add_optimizer_variables(variables, "average_of")

    def apply(self, grads: list[Tensor], trainable_variables: Any = None) -> None:
        """Update the variables by the gradients, summed over all workers."""
        if self.workers is not None:
            known = [index for index, gradient in enumerate(grads) if gradient is not None]
            grads = list(grads)
            totals = self.workers.all_reduce([grads[index] for index in known], key=3)
            for index, total in zip(known, totals, strict=True):
                grads[index] = total
        super().apply(grads, trainable_variables)

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        """Clip by the global norm; Keras's own sums the squares of a row's parts."""
        if not self.global_clipnorm:
            return super()._clip_gradients(grads)
        ops = keras.ops
        grads = [_sum_rows(gradient) for gradient in grads]
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
            share = ops.cast(1.0 - keep, average.dtype)
            average.assign(average + share * (ops.cast(variable, average.dtype) - average))

    def _backend_update_step(
        self, grads: list[Tensor], trainable_variables: list[Any], learning_rate: Tensor
    ) -> None:
        """Compute the scalars of the step once, then update each variable."""
        if backend.name() == "tensorflow" and not self.amsgrad:
            step = keras.ops.cast(self.iterations + 1, "float32")
            powers = [keras.ops.power(beta, step) for beta in (self.beta_1, self.beta_2)]
            learning_rate = (learning_rate, *powers)  # passed on to `update_step`
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Any) -> None:
        """Update one variable; `learning_rate` comes from `_backend_update_step`."""
        if not isinstance(learning_rate, tuple):
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        rate, power_1, power_2 = (tf.cast(scalar, variable.dtype) for scalar in learning_rate)
        index = self._get_variable_index(variable)
        m, v = self._momentums[index].value, self._velocities[index].value
        gradient = tf.cast(gradient, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            if self.lazy:
                alpha = rate * tf.sqrt(1 - power_2) / (1 - power_1)
                self._update_rows(gradient, variable, m, v, alpha)
                return
            gradient = tf.convert_to_tensor(gradient)  # sums rows that occur twice
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

    def _update_rows(self, gradient: Any, variable: Any, m: Any, v: Any, alpha: Tensor) -> None:
        """Update the rows of a table that are in the batch; `alpha` is the bias-corrected rate."""
        import tensorflow as tf

        rows, positions = tf.unique(gradient.indices)
        g = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
        old_m, old_v = tf.gather(m, rows), tf.gather(v, rows)
        new_m = old_m + (g - old_m) * (1 - self.beta_1)
        new_v = old_v + (tf.square(g) - old_v) * (1 - self.beta_2)
        m.scatter_update(tf.IndexedSlices(new_m, rows))
        v.scatter_update(tf.IndexedSlices(new_v, rows))
        variable.scatter_sub(
            tf.IndexedSlices(alpha * new_m / (tf.sqrt(new_v) + self.epsilon), rows)
        )

    def get_config(self) -> dict[str, Any]:
        """Arguments from which `from_config` builds the same optimiser."""
        return super().get_config() | {"lazy": self.lazy, "average": self.average}


def _sum_rows(gradient: Any) -> Any:
    """A table's gradient with one entry per row; any other gradient as it is."""
    if not hasattr(gradient, "indices"):  # tf.IndexedSlices, on TensorFlow only
        return gradient
    import tensorflow as tf

    rows, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _values(gradient: Any) -> Tensor:
    return gradient.values if hasattr(gradient, "indices") else gradient


def _scaled(gradient: Any, scale: Tensor) -> Any:
    if not hasattr(gradient, "indices"):
        return gradient * keras.ops.cast(scale, gradient.dtype)
    import tensorflow as tf

    values = gradient.values * tf.cast(scale, gradient.values.dtype)
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)


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
        ranker: whose weights decay, see `decayed_variables`; None applies no weight decay.
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
        lazy=options.lazy_embeddings,
        average=options.ema,
        weight_decay=options.weight_decay if decays else None,
        global_clipnorm=options.clip_norm,
    )
    optimizer.workers = workers
    if ranker is not None and decays:
        decayed = {id(variable) for variable in decayed_variables(ranker)}
        optimizer.exclude_from_weight_decay(
            [variable for variable in ranker.trainable_variables if id(variable) not in decayed]
        )
    if options.precision == "mixed_float16":
        # Without scaling, small gradients would underflow.
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer


@contextmanager
def averaged(optimizer: keras.optimizers.Optimizer, variables: list[Any]) -> Iterator[None]:
    """Within it, the variables hold their averages, if the optimiser keeps some.

    Afterwards they hold, bit for bit, what they held before: training goes on from there.

    Args:
        optimizer: that `make_optimizer` returned, built.
        variables: that it was built on, in the same order.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    if not inner.averages:
        yield
        return
    trained = [to_numpy(variable) for variable in variables]
    for variable, average in zip(variables, inner.averages, strict=True):
        variable.assign(average.value)
    try:
        yield
    finally:
        for variable, value in zip(variables, trained, strict=True):
            variable.assign(value)
