"""Base paths in object stores: a copy on this machine, which the version manager polls.

Public face: `mirror.Mirror`.
"""
