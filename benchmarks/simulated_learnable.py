"""How much of the simulated feed can be learnt: one who knows its equations fits all unknowns.

    multigate demo --out DEMO
    python benchmarks/simulated_learnable.py --demo DEMO

`multigate demo` prints the best possible metrics: of somebody who knows every user's tastes and
every item's quality.  Nobody can learn these exactly from some 80 rows a user.  Here all unknowns
(tastes by country, age and user, eagerness, generosity, tags, quality, clickbait, sharing, authors,
the hours of topics) are those of the simulator's equations (`jobs/simulate.py`), each with the
simulator's own normal prior.  Their most probable values are found, given all labels before the
test split, validation's included.  Interests of the moment are counted from the clicks before, as
the simulator does.  The demo's rates of past labels go on through the test days, the fit does not.

Prints a table in Markdown, with the demo's own metrics, and one JSON line.  Takes half a minute;
needs `multigate[jax]`.
"""

import argparse
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jax.scipy.stats import norm
from sklearn.metrics import roc_auc_score

from multigate.jobs import simulate as feed

TAGS = feed._TOPICS * feed._TAGS_PER_TOPIC
STEPS, RATE = 400, 0.03
BINARY = ("click", "deep_click", "share", "like", "dislike", "follow")
Parameters = dict[str, jax.Array]


def rows_of(log: pl.DataFrame) -> dict[str, np.ndarray]:
    """The log's columns as arrays, and each row's recent interest in its topic."""
    number = {
        name: log[name].str.extract(r"(\d+)").cast(pl.Int64).to_numpy()
        for name in ("user_id", "item_id", "topic")
    }
    countries = sorted(log["country"].drop_nulls().unique())
    country = log["country"].replace_strict({name: c for c, name in enumerate(countries)})
    tags = np.zeros((len(log), TAGS), np.float32)
    for row, names in enumerate(log["tags"].to_list()):
        tags[row, [int(name.removeprefix("tag")) for name in names]] = 1
    labels = {
        name: log[name].cast(pl.Float64).to_numpy()
        for name in ("click", "share", "like", "dislike", "follow", "dwell")
    }
    return {
        "user": number["user_id"],
        "item": number["item_id"],
        "topic": number["topic"],
        "country": country.fill_null(0).to_numpy(),
        "country_known": country.is_not_null().cast(pl.Float64).to_numpy(),
        "age": ((log["age"] - 44) / 15).fill_null(0.0).to_numpy(),
        "hour": log["hour"].to_numpy() / 24 * 2 * np.pi,
        "tags": tags,
        "recent": recent(log, number["user_id"], number["topic"]),
        "looked": feed._LOOKED[log["position"].to_numpy()],
        "length": np.log(log["length"].to_numpy() / 600),
        "rating": log["rating"].fill_null(0).cast(pl.Float64).to_numpy(),
        "rated": log["rating"].is_not_null().cast(pl.Float64).to_numpy(),
        **labels,
    }


def recent(log: pl.DataFrame, user: np.ndarray, topic: np.ndarray) -> np.ndarray:
    """Interest of the moment by row: clicks of the user's requests before, which fade."""
    request, click = log["request_id"].to_numpy(), log["click"].to_numpy()
    begins = np.flatnonzero(np.append(True, request[1:] != request[:-1]))
    moment = np.zeros((user.max() + 1, topic.max() + 1))
    found = np.zeros(len(log))
    for begin, end in zip(begins, np.append(begins[1:], len(log)), strict=True):
        mine = moment[user[begin]]
        found[begin:end] = mine[topic[begin:end]]
        mine *= feed._MEMORY
        np.add.at(mine, topic[begin:end], click[begin:end])
    return np.tanh(0.5 * found)


def priors(rows: dict[str, np.ndarray]) -> dict[str, tuple[float, tuple[int, ...]]]:
    """Deviation and shape of each unknown, as `simulate` draws it; hours of topics are free."""
    users, items, topics = (int(rows[name].max()) + 1 for name in ("user", "item", "topic"))
    return {
        "of_country": (0.7, (int(rows["country"].max()) + 1, topics)),
        "of_age": (0.5, (topics,)),
        "of_user": (0.7, (users, topics)),
        "eager": (0.5, (users,)),
        "generous": (0.6, (users,)),
        "tag": (0.35, (TAGS,)),
        "quality": (0.6, (items,)),
        "bait": (1.0, (items,)),
        "sharing": (0.8, (items,)),
        "author": (0.8, (items,)),
        "peak": (10.0, (topics, 2)),
    }


def expected(p: Parameters, rows: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """What the simulator's equations make of the unknowns, by row."""
    topic, user, item = rows["topic"], rows["user"], rows["item"]
    fit = p["of_country"][rows["country"], topic] * rows["country_known"]
    fit += p["of_age"][topic] * rows["age"] + p["of_user"][user, topic]
    peak = p["peak"] / jnp.sqrt((p["peak"] ** 2).sum(axis=1, keepdims=True) + 1e-9)
    daytime = jnp.cos(rows["hour"]) * peak[topic, 0] + jnp.sin(rows["hour"]) * peak[topic, 1]
    at = feed.equations(
        fit=fit,
        quality=p["quality"][item],
        bait=p["bait"][item],
        appeal=rows["tags"] @ p["tag"],
        eager=p["eager"][user],
        generous=p["generous"][user],
        sharing=p["sharing"][item],
        author=p["author"][item],
        daytime=daytime,
        recent=rows["recent"],
        length=rows["length"],
    )
    dwell_at, rating_at = at.pop("dwell"), at.pop("rating")
    chances = {name: jax.nn.sigmoid(logit) for name, logit in at.items()}
    return chances | {"dwell_at": dwell_at, "rating_at": rating_at}


def loss(p: Parameters, rows: dict[str, jax.Array], deviations: dict[str, float]) -> jax.Array:
    """Minus the logarithm of the posterior density."""
    q, click = expected(p, rows), rows["click"]

    def missed(label: jax.Array, chance: jax.Array) -> jax.Array:
        return -jnp.log(jnp.where(label > 0, chance, 1 - chance) + 1e-7)

    unclicked = rows["looked"] * (1 - q["click"]) / (1 - rows["looked"] * q["click"] + 1e-7)
    cost = missed(click, rows["looked"] * q["click"])
    for name in ("like", "share", "follow", "dislike"):
        cost += click * missed(rows[name], q[name])
    cost += (1 - click) * missed(rows["dislike"], unclicked * q["dislike_unclicked"])
    seconds = jnp.log(jnp.maximum(rows["dwell"], 0.05))
    cost += click * (seconds - q["dwell_at"]) ** 2 / (2 * feed._DWELL_SPREAD**2)
    above = norm.cdf((rows["rating"] + 0.5 - q["rating_at"]) / feed._RATING_SPREAD)
    below = norm.cdf((rows["rating"] - 0.5 - q["rating_at"]) / feed._RATING_SPREAD)
    above, below = jnp.where(rows["rating"] > 4, 1, above), jnp.where(rows["rating"] < 2, 0, below)
    cost -= rows["rated"] * jnp.log(jnp.maximum(above - below, 1e-6))
    held = sum((p[name] ** 2).sum() / (2 * sd**2) for name, sd in deviations.items())
    return cost.sum() + held


def fit(rows: dict[str, np.ndarray], known: np.ndarray) -> Parameters:
    """The most probable values of the unknowns given some rows, by Adam over all at once."""
    drawn = priors(rows)
    deviations = {name: sd for name, (sd, _) in drawn.items()}
    random = np.random.default_rng(0)
    p = {name: jnp.asarray(random.normal(0, 0.01, shape)) for name, (_, shape) in drawn.items()}
    read = {name: jnp.asarray(column[known]) for name, column in rows.items()}
    mean = jax.tree.map(jnp.zeros_like, p)
    square = mean

    @jax.jit
    def step(state: tuple[Any, Any, Any], n: jax.Array) -> tuple[Any, Any, Any]:
        p, mean, square = state
        gradient = jax.grad(loss)(p, read, deviations)
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, gradient)
        square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, square, gradient)
        rate = RATE * (1 - n / (STEPS + 1))

        def moved(x: jax.Array, m: jax.Array, s: jax.Array) -> jax.Array:
            return x - rate * (m / (1 - 0.9**n)) / (jnp.sqrt(s / (1 - 0.999**n)) + 1e-8)

        return jax.tree.map(moved, p, mean, square), mean, square

    state = (p, mean, square)
    for n in range(1, STEPS + 1):
        state = step(state, jnp.float32(n))
    return state[0]


def predict(p: Parameters, rows: dict[str, np.ndarray], test: np.ndarray) -> dict[str, np.ndarray]:
    """The expected labels of the test rows, without the position."""
    read = {name: jnp.asarray(column[test]) for name, column in rows.items()}
    q = {name: np.asarray(column) for name, column in expected(p, read).items()}
    deep = 1 - norm.cdf((np.log(feed._DEEP) - q["dwell_at"]) / feed._DWELL_SPREAD)
    stars = [1 - norm.cdf((k + 0.5 - q["rating_at"]) / feed._RATING_SPREAD) for k in range(1, 5)]
    found = {name: q["click"] * q[name] for name in ("share", "like", "follow")}
    return found | {
        "click": q["click"],
        "deep_click": q["click"] * np.asarray(deep),
        "dislike": q["click"] * q["dislike"] + (1 - q["click"]) * q["dislike_unclicked"],
        "dwell": np.exp(q["dwell_at"] + feed._DWELL_SPREAD**2 / 2),
        "rating": 1 + np.sum([np.asarray(above) for above in stars], axis=0),
    }


def main() -> None:
    """Print what can be learnt beside what the demo's model has learnt."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--demo", type=Path, required=True, help="folder of `multigate demo`")
    demo = arguments.parse_args().demo
    log = pl.concat([pl.read_ndjson(path) for path in sorted(demo.glob("logs/log-*.jsonl"))])
    split = json.loads((demo / "examples/report.json").read_text())["splits"]["test"]
    first, last = (datetime.fromisoformat(split[end]).timestamp() for end in ("first", "last"))
    time = log["time"].to_numpy()
    test = (time >= first) & (time <= last)
    rows = rows_of(log)
    predicted = predict(fit(rows, time < first), rows, test)
    labels = {name: column[test] for name, column in rows.items()}
    labels["deep_click"] = labels["dwell"] >= feed._DEEP
    metrics = {name: float(roc_auc_score(labels[name], predicted[name])) for name in BINARY}
    for name, of in (("dwell", "click"), ("rating", "rated")):
        where = labels[of] > 0
        error = predicted[name][where] - labels[name][where]
        metrics[name] = float(np.sqrt(np.mean(error**2)))
    report = json.loads((demo / "report.json").read_text())["tasks"]
    print("| task | learnt by the demo | learnable |\n| --- | --- | --- |")
    for name, task in report.items():
        print(f"| {name} | {task['value']:.4f} | {metrics[name]:.4f} |")
    print(json.dumps({"rows": int(test.sum()), "learnable": metrics}))


if __name__ == "__main__":
    main()
