"""The ranker: gates, experts and towers; training, evaluation and export.

Of our packages it imports `configs` only.  Everything except `model.export` runs on Keras's
TensorFlow and JAX backends (`KERAS_BACKEND=tensorflow|jax`).
"""
