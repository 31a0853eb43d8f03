"""TensorFlow with Keras 2, for tensorflow-recommenders; import `tf` and `tfrs` from here.

TensorFlow decides which Keras `tf.keras` is when a process first asks for it, by an environment
variable, which is set for that moment only: processes that this one starts are to decide for
themselves. A process that has Keras 3 there already is refused.
"""

import os

import tensorflow as tf

from multigate.configs.errors import ConfigError

_SWITCH = "TF_USE_LEGACY_KERAS"

_before = os.environ.get(_SWITCH)
os.environ[_SWITCH] = "1"
try:
    if not tf.keras.Model.__module__.startswith("tf_keras"):
        raise ConfigError(
            f"candidates: tf.keras is {tf.keras.Model.__module__.partition('.')[0]} in this "
            "process, expected tf_keras; run `multigate candidates` in a process of its own"
        )
    import tensorflow_recommenders as tfrs
finally:
    if _before is None:
        del os.environ[_SWITCH]
    else:
        os.environ[_SWITCH] = _before

__all__ = ["tf", "tfrs"]
