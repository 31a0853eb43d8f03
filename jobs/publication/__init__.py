"""What is in production: a base folder of versions, published and taken back by renames.

Public face: `base_folder.Base`, `pair.Pair`.
"""
