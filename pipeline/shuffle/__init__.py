"""Brings the rows of one user, or of one item, together.

Public face: every module.
"""
