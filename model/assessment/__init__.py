"""What the report says about a model, as plain values; `model.report.page` draws it.

Public face: `assess.assess`, and the shape of what it returns, `results.Assessment`.
"""
