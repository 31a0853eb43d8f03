"""The nightly run: stages that each leave a record, so that a killed night goes on where it was.

Public face: `run.run`, `listing.listed` and `folder.RunFolder`.
"""
