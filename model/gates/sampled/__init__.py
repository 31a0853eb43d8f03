"""The sampled router: one drawn expert per example, with or without an expert capacity.

Public face: `router.Sampled`, `estimators.SampledLoss`.
"""
