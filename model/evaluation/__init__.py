"""Exact metrics of scores against labels, with intervals, and the verdict between two models.

Public face: `evaluate.evaluate`, `comparison.compare`, `scored.load`, `scored.Scored`, and the
shapes of what they return in `results`.
"""
