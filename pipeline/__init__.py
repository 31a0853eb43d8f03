"""From raw user logs to training examples: an Apache Beam job over tables.

    read ──► shuffle ──► label, compute ──► sample ──► write
    (events,  (buckets    (attribution,      (splits,   (Parquet, vocabularies,
     rejects)  by user)    labels, features)  negatives) statistics, manifest)

`transforms` wires the stages of `stages/` with Beam; the other rooms are plain functions over
tables. Rows travel between stages as parcels (`shuffle.parcel`).
`audit/` proves on the output that nothing in it tells of the future.

Public face: `job.run`, `window.plan_window`, `plan.Plan`, `transforms.build`.
"""
