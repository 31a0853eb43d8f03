"""Factors of two features' values: products that are added to the outputs, and how to find them.

Public face: `term.Factors`, `term.PairTables`, `newton.Rows`, `newton.evidence` and
`newton.factorise`.
"""
