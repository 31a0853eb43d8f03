"""Which version is in production: base folders whose versions are published by renames.

Public face: `base_folder.Base`, `pair.Pair`, and `trial` for a version that is tried beside it.
"""
