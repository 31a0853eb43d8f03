"""Exact metrics of scores against labels, with intervals, and the verdict between two models.

Public face: `evaluate.evaluate`, `comparison.compare`, `scored.Scored`, and the shapes of what they
return in `results`.
"""
