"""Routers trained by drawing one expert per example, with or without expert capacity.

Public face: `router.SampledRouter`, `estimators.Estimator`, `assignment.assign`.
"""
