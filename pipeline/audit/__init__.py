"""Proves on any output that examples tell only what had happened by then.

Public face: `audit.audit`, `giveaway`.
"""
