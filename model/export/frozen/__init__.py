"""What the serving graph is made of: encoding, matches, user half, mixture, weights, item table.

Public face: every module; `model.export.graph` puts them together.
"""
