"""Adam with one fused kernel per variable.

The optimiser's step is bound by memory bandwidth.  It grows with the number of experts, also of
those that did not run: every variable, both its moments and its gradient are read and written.
Keras's Adam makes about ten passes over them; TensorFlow's fused kernel makes one.
"""

from typing import Any

import keras

from multigate.configs.sections.model import TrainConfig
from multigate.model import backend
from multigate.model.backend.workers import Workers

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

    Args:
        learning_rate: a number or a `keras.optimizers.schedules.LearningRateSchedule`.
        lazy: update only the embedding rows in the batch.
        options: the other arguments of `keras.optimizers.Adam`.

    Raises:
        ValueError: `lazy` with a backend other than TensorFlow (whose gradients are dense) or
            with `amsgrad`.
    """

    def __init__(self, learning_rate: Any = 0.001, lazy: bool = False, **options: Any) -> None:
        super().__init__(learning_rate=learning_rate, **options)
        if lazy and (backend.name() != "tensorflow" or self.amsgrad):
            raise ValueError(
                "lazy: expected the TensorFlow backend and amsgrad=False, "
                f"received backend {backend.name()!r} and amsgrad={self.amsgrad}"
            )
        self.lazy = lazy
        self.workers: Workers | None = None
        """Processes over which gradients are summed; None for this process alone."""

    def apply(self, grads: list[Tensor], trainable_variables: Any = None) -> None:
        """Update the variables by the gradients, summed over all workers."""
        if self.workers is not None:
            known = [index for index, gradient in enumerate(grads) if gradient is not None]
            grads = list(grads)
            totals = self.workers.all_reduce([grads[index] for index in known], key=3)
            for index, total in zip(known, totals, strict=True):
                grads[index] = total
        super().apply(grads, trainable_variables)

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
        return super().get_config() | {"lazy": self.lazy}


def make_optimizer(
    options: TrainConfig, steps: int, warm: bool = False, workers: Workers | None = None
) -> keras.optimizers.Optimizer:
    """The optimiser of a training with its learning rate schedule.

    Args:
        options: of the training.
        steps: of one epoch; a decay ends with the last of `epochs` epochs.
        warm: whether training starts from a checkpoint.
        workers: processes over which gradients are summed; None for this process alone.
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
    optimizer = Adam(rate, lazy=options.lazy_embeddings)
    optimizer.workers = workers
    if options.precision == "mixed_float16":
        # Without scaling, small gradients would underflow.
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return optimizer
