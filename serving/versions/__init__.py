"""Versions of models: found, loaded, warmed up, batched, swapped, unloaded.

Public face: `manager.VersionManager`, `models.Models`, `folders.scan`.
"""
