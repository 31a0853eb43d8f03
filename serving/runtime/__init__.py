"""Loads and runs SavedModels through TensorFlow's C interface, without TensorFlow's Python.

Public face: `start`, `session.Session`, `errors`, `dtypes`, `devices`.
"""
