"""Scores with an exported version in this process, without a server: single calls and whole files.

Public face: `version.Version`, `score.score`, `rows`.
"""
