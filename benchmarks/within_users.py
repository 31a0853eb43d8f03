"""How AUC within users judges a model that learns from a user's own past labels.

    python benchmarks/within_users.py

2,000 users, each with a rate of its own (Beta(0.5, 9.5), mean 5 %), 30 rows each, no item tells
anything.  The best possible score that may look at the past only is the posterior mean of the rate:
(positives so far + 0.5) / (rows so far + 10).  It rises after each positive, so that a user's
positives have lower scores than the rows after them.  `constant` is the true rate, which orders no
two rows of one user.
"""

import json

import numpy as np

from multigate.model.evaluation.measures.ranks import auc_by_list

USERS, ROWS = 2_000, 30


def main() -> None:
    """Print AUC over all rows and within users, of both scores."""
    generator = np.random.default_rng(0)
    rates = np.repeat(generator.beta(0.5, 9.5, USERS), ROWS).reshape(USERS, ROWS)
    labels = generator.random((USERS, ROWS)) < rates
    before = np.cumsum(labels, axis=1) - labels
    scores = {"learnt": (before + 0.5) / (np.arange(ROWS) + 10), "constant": rates}
    users = np.repeat(np.arange(USERS), ROWS)
    both = (labels.any(axis=1) & ~labels.all(axis=1))[:, None].repeat(ROWS, axis=1).ravel()
    found = {}
    for name, score in scores.items():
        flat, label = score.ravel(), labels.ravel().astype(float)
        pooled = auc_by_list(np.zeros(len(label), np.int64), label, flat)[0]
        within = np.nanmean(auc_by_list(users[both], label[both], flat[both]))
        found[name] = {"auc": round(float(pooled), 3), "within_users": round(float(within), 3)}
        print(f"{name:9} AUC {pooled:.3f}, within users {within:.3f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
