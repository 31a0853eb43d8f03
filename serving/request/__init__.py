"""From a Rank message to the inputs of the `rank` signature, or to a clear error.

Public face: `rank_request.RequestReader`.
"""
