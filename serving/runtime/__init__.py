"""Loads and runs SavedModels through TensorFlow's C interface, without TensorFlow's Python.

Public face: `open`, `start`, `session.Session`, `errors`, `dtypes`, `devices`, and
`python_session` as the fallback.
"""
