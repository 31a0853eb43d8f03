"""Features: side tables, histories, counters, rates, snapshots, and statistics of columns.

Public face: every module.
"""
