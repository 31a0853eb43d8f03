"""What of a log is feedback, and what else could not be known beforehand.

Public face: `labels.Labels`, `labels.snake`, `event_labels.feedback_events`,
`column_labels.feedback_columns`, `propensity.of_the_policy`.
"""
