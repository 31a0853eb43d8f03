"""The nightly run: stages that each leave a record, so that a killed run goes on where it was.

Public face: `nightly.run`, `listing.list_runs` and `folder.RunFolder`.
"""
