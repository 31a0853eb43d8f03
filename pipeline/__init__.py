"""From raw user logs to training examples: an Apache Beam job over tables.

    sources ──► normalise ──► buckets ──► examples ──► negatives, split ──► write
    (files)     (events,      (by user,   (attribution,                     (Parquet, vocabularies,
                 rejects)      spilled)    labels, histories)                statistics, manifest)

`job` wires these with Beam and holds no arithmetic; all others are plain functions over tables.
"""
