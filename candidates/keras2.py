"""TensorFlow with Keras 2, for tensorflow-recommenders; import `tf` and `tfrs` from here.

An environment variable decides whether `tf.keras` is Keras 2 or 3, when a process first uses it.
It is set here for that moment only, so that processes that this one starts do not inherit it. A
process in which `tf.keras` is Keras 3 already gets an error.
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
