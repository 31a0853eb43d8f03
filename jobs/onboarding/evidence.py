"""Counts what the labels of a draft can say: the positives of the task that has most of them."""

from multigate.jobs.onboarding.feedback.labels import Labels
from multigate.jobs.onboarding.tables.columns import look
from multigate.jobs.onboarding.tables.roles import Roles


def most_positives(roles: Roles, labels: Labels, log_rows: int) -> int:
    """Positives of the whole log, about, of the task with most; a number not 0 counts as one.

    All tasks share the experts: one with many labels teaches them for all.

    Args:
        roles: of the sample's columns.
        labels: the tasks.
        log_rows: of the log.
    """
    rows = len(roles.frame)
    if labels.shown_only or not rows:
        return log_rows
    most = 0
    for task in labels.tasks.values():
        label = task["label"]
        kinds = label.get("events")
        if kinds is not None and roles.event is not None:
            found = sum(roles.event_counts.get(kind, 0) for kind in kinds)
        elif "column" in label and label["column"] in roles.columns:
            number = look(label["column"], roles.frame[label["column"]]).number
            found = 0 if number is None else int((number != 0).sum())
            if task["type"] == "binary" and "at_least" not in task:
                found = min(found, rows - found)
        else:
            found = rows  # such as the time to the next event, which nearly each row has
        most = max(most, found)
    return round(most * log_rows / rows)
