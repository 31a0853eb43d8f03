"""Model versions: found on disk, loaded, checked, warmed up, batched, swapped and unloaded.

Public face: `manager.VersionManager`, `models.Models`, `folders.scan`, `opened.OpenedVersion`
and `explaining` for explanations.
"""
