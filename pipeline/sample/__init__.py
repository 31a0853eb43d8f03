"""Negatives: which items a positive can draw from, and the draw.

Public face: every module.
"""
