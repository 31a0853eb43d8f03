"""Examples on disk become batches of numbers: encoding, feeds, padding.

Public face: `encoding.Encoder`, `examples.read_split`, `feeds.make_feed`, `rows.read_rows`,
`raw.raw_values`, `padding.Padding`.
"""
