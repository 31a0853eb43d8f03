"""From a user's events to labels: attribution, the label rules and the split.

Public face: every module.
"""
