"""Turns a Rank message into the inputs of the `rank` signature, or into a clear error.

Public face: `rank_request.RequestReader`.
"""
