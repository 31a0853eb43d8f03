"""Versions of models: found, loaded, warmed up, batched, swapped, unloaded.

Public face: `manager.Manager`, `models.Models`, `folders.scan`.
"""
