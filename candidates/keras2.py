"""TensorFlow with Keras 2, for tensorflow-recommenders; import `tf` and `tfrs` from here.

TensorFlow decides once per process which Keras `tf.keras` is, by a variable that the package sets.
A process that has Keras 3 there already is refused.
"""

import tensorflow as tf

from configs.errors import ConfigError

if not tf.keras.Model.__module__.startswith("tf_keras"):
    raise ConfigError(
        f"candidates: tf.keras is {tf.keras.Model.__module__.partition('.')[0]} in this process, "
        "expected tf_keras; run `multigate candidates` in a process of its own"
    )

import tensorflow_recommenders as tfrs

__all__ = ["tf", "tfrs"]
