"""The mixture of experts: T gates over shared experts, and the dispatch that skips zero weights.

Public face: `mixture.Mixture`, `mixture.Mixed`, `experts.Expert`, `experts.make_experts`.
"""
