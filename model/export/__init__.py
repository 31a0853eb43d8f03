"""From a checkpoint to a SavedModel version that is safe to serve.

Public face: `export.export`.
"""
