"""The ranker: gates, experts and towers; training, evaluation and export.

Imports `configs` alone among our packages.  Everything but `model.export.export` runs on the
TensorFlow and the JAX backend of Keras (`KERAS_BACKEND=tensorflow|jax`).
"""
