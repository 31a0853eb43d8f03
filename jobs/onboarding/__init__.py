"""The first hour with a new log: draft a configuration from it, check one against it.

Public face: `draft.draft`, `drafted.as_yaml`, `check.check`, `findings.lines`.
"""
