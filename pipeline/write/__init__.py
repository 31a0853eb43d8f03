"""From labelled rows to a folder of examples: Parquet, vocabularies, the manifest, the report.

Public face: every module.
"""
