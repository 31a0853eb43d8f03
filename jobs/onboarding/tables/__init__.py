"""What the tables of a folder hold: formats, columns, spellings, and who and what rows are about.

Public face: `raw.find_tables`, `raw.Table`, `columns`, `outcomes`, `roles.guess_roles`,
`roles.Roles`, `roles.side_tables`, `rows.count_rows`, `unfold.unfold`.
"""
