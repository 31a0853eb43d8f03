"""Examples on disk become batches of numbers: encoding, feeds, padding.

Public face: `encoding.Encoder`, `examples.read_split`, `feeds`, `rows.Rows`.
"""
