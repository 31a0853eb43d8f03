"""Several training steps on JAX as one program: for accelerators.

A step on a GPU is some hundred small kernels.  Keras's `steps_per_execution` starts them step by
step, and waits for the losses of the last one.  One program of many steps saves what lies between.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax import lax

State = Any


def steps_at_once(model: keras.Model) -> Callable[[State, Iterator[Any]], tuple[Any, State]]:
    """Keras's train function, that runs `steps_per_execution` batches of one shape at once.

    A group that is too small, or has a batch of another shape, runs one by one: the last of an
    epoch.

    Args:
        model: compiled; its `train_step` takes and gives a state.

    Returns:
        A function of the state and an iterator of batches.  It gives the last step's logs, and the
        state, and raises StopIteration where no batch is left.
    """
    size = model.steps_per_execution
    single = jax.jit(model.train_step, donate_argnums=0)

    def body(state: State, batch: Any) -> tuple[State, Any]:
        logs, state = model.train_step(state, batch)
        return tuple(state), logs

    def run(state: State, batches: list[Any]) -> tuple[Any, State]:
        stacked = keras.tree.map_structure(lambda *arrays: jnp.stack(arrays), *batches)
        state, logs = lax.scan(body, tuple(state), stacked)
        return keras.tree.map_structure(lambda a: a[-1], logs), state

    several = jax.jit(run, donate_argnums=0)

    def train(state: State, batches: Iterator[Any]) -> tuple[Any, State]:
        taken = [next(batches)]
        for batch in batches:
            taken.append(batch)
            if len(taken) == size:
                break
        if len(taken) == size and len({_shapes(batch) for batch in taken}) == 1:
            return several(tuple(state), taken)
        for batch in taken:
            logs, state = single(tuple(state), batch)
        return logs, state

    return train


def _shapes(batch: Any) -> tuple[Any, ...]:
    return tuple(array.shape for array in keras.tree.flatten(batch))
