"""The mixture of experts: T gates over shared experts, and the dispatch that skips zero weights.

Public face: `mixture.MixtureOfExperts`, `experts.Expert`, `dispatch.dispatch`.
"""
