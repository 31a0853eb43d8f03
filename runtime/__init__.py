"""Loads and runs SavedModels through TensorFlow's C interface, without TensorFlow's Python.

The server ranks with it, and evaluation and export measure a version with it: what is measured is
what is served.

Public face: `start`, `session.Session`, `signature`, `errors`, `dtypes`, `devices`,
`tensorflow_messages`.
"""
