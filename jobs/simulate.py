"""Simulates a feed's log: users with latent tastes, items with latent topics, known truth.

Each user comes back over thirty days; each request shows ten items in random order. Whether a user
looks at an item depends on its position alone. All ten positions are equally likely, so the best
score without the position is known exactly: the mean over them. RecSim was considered: it trains
agents, and gives no such truth.

The tasks conflict on purpose. Clickbait raises clicks and dislikes, and lowers dwell, likes and
ratings, so that one shared ranking cannot be best for engagement and satisfaction.

    looked  ~ Bernoulli(1 / (1 + 0.12 position))       click  = looked * Bernoulli(sigmoid(c))
    dwell   = click * lognormal(m, 0.7) seconds        like, share, follow = click * Bernoulli
    dislike = looked * Bernoulli, by whether clicked   rating = round(normal(r, 0.7)) in 1..5, asked
                                                                after 30 % of the clicks, else null
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from multigate.configs.files import new_folder
from multigate.pipeline.write.parts import write_parquet

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SLOTS = 10
_DAYS, _START = 30, 1_767_225_600  # 2026-01-01T00:00:00Z
_TOPICS, _TAGS_PER_TOPIC, _COUNTRIES = 12, 4, 8
_DWELL_SPREAD, _RATING_SPREAD, _ASKED, _DEEP = 0.7, 0.7, 0.3, 30.0
_LOOKED = 1 / (1 + 0.12 * np.arange(SLOTS))
_MEMORY = 0.7  # how much of a user's interest of the moment is left at the next request
_FILES = 4


@dataclass(frozen=True)
class _World:
    """Latent and visible properties: of U users, I items, and the T topics."""

    taste: Floats  # (U, T)
    eager: Floats  # (U,) clicks more
    generous: Floats  # (U,) likes more, rates higher
    country: Ints  # (U,) -1 where the log does not say
    age: Ints  # (U,) -1 where the log does not say
    topic: Ints  # (I,)
    tags: Ints  # (I, 3) -1 where there are fewer
    appeal: Floats  # (I,) of its tags
    quality: Floats  # (I,)
    bait: Floats  # (I,)
    length: Ints  # (I,) words
    sharing: Floats  # (I,)
    author: Floats  # (I,) makes people follow
    popular: Floats  # (I,) log of how often it is shown
    peak: Floats  # (T,) hour of the day


def simulate(
    out: Path, seed: int = 0, *, users: int = 2000, items: int = 800, exposures: int = 200_000
) -> None:
    """Write a log and its truth.

    Args:
        out: the folder to make: `log-*.jsonl`, in the order of time, and `truth.parquet`:
            `request_id`, `item_id` and, for each task, its expected label given all that can be
            known without the position (dwell in seconds given a click; rating given one).
        seed: of everything.
        users: how many there are.
        items: how many there are, at least ten.
        exposures: rows of the log, rounded down to whole requests of ten.

    Raises:
        DataError: `out` exists.
    """
    random = np.random.default_rng(seed)
    world = _make_world(random, users, items)
    with new_folder(out) as folder:
        log, truth = _run(random, world, exposures // SLOTS)
        edges = np.linspace(0, len(log), _FILES + 1).astype(int)
        for at in range(_FILES):
            rows = log.slice(edges[at], edges[at + 1] - edges[at])
            rows.write_ndjson(folder / f"log-{at}.jsonl")
        names = [name for name in truth.columns if not name.endswith("_id")]
        schema = pa.schema(
            [("request_id", pa.string()), ("item_id", pa.string())]
            + [(name, pa.float64()) for name in names]
        )
        write_parquet(truth, folder / "truth.parquet", schema)


def _make_world(random: np.random.Generator, users: int, items: int) -> _World:
    country, age = random.integers(_COUNTRIES, size=users), random.integers(18, 71, size=users)
    taste = random.normal(0, 0.7, (_COUNTRIES, _TOPICS))[country]
    taste += np.outer((age - 44) / 15, random.normal(0, 0.5, _TOPICS))
    taste += random.normal(0, 0.7, (users, _TOPICS))
    topic = random.integers(_TOPICS, size=items)
    tags = topic[:, None] * _TAGS_PER_TOPIC + random.permuted(
        np.tile(np.arange(_TAGS_PER_TOPIC), (items, 1)), axis=1
    )
    tags = np.where(np.arange(_TAGS_PER_TOPIC) < random.integers(1, 4, (items, 1)), tags, -1)[:, :3]
    liked = np.append(random.normal(0, 0.35, _TOPICS * _TAGS_PER_TOPIC), 0.0)  # of no tag: 0
    return _World(
        taste=taste,
        eager=random.normal(0, 0.5, users),
        generous=random.normal(0, 0.6, users),
        country=np.where(random.random(users) < 0.05, -1, country),
        age=np.where(random.random(users) < 0.15, -1, age),
        topic=topic,
        tags=tags,
        appeal=liked[tags].sum(axis=1),
        quality=random.normal(0, 0.6, items),
        bait=random.normal(0, 1, items),
        length=np.exp(random.normal(math.log(600), 0.6, items)).astype(np.int64) + 1,
        sharing=random.normal(0, 0.8, items),
        author=random.normal(0, 0.8, items),
        popular=random.normal(0, 0.5, items),
        peak=random.uniform(0, 24, _TOPICS),
    )


def _request_times(random: np.random.Generator, users: int, requests: int) -> tuple[Ints, Ints]:
    """Users and times of requests, sorted by user and time; a user's are a minute apart."""
    activity = np.exp(random.normal(0, 0.7, users))
    user = np.sort(random.choice(users, requests, p=activity / activity.sum()))
    evening = 1 + 0.8 * np.cos((np.arange(24) - 20) / 24 * 2 * np.pi)
    hour = random.choice(24, requests, p=evening / evening.sum())
    time = _START + 3600 * (24 * random.integers(_DAYS, size=requests) + hour)
    time += random.integers(3600, size=requests)
    order = np.lexsort((time, user))
    user, time = user[order], time[order]
    first = np.searchsorted(user, user)
    behind = 60 * (np.arange(requests) - first)
    # A running maximum within each user: users are kept apart by a step larger than any time.
    step = user * (2 * _START)
    return user, np.maximum.accumulate(time - behind + step) - step + behind


def _run(
    random: np.random.Generator, world: _World, requests: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Let the users come back, all users' n-th requests at once; returns log and truth."""
    user, time = _request_times(random, len(world.eager), requests)
    turn = np.arange(requests) - np.searchsorted(user, user)
    rank = np.empty(requests, np.int64)
    rank[np.argsort(time, kind="stable")] = np.arange(requests)  # requests are numbered by time
    moment = np.zeros_like(world.taste)  # (U, T) interest of the moment: recent clicks by topic
    logs, truths = [], []
    for n in range(int(turn.max(initial=-1)) + 1):
        now = np.flatnonzero(turn == n)
        shown = _show(random, world, len(now))
        log, truth = _exposures(random, world, user[now], time[now], shown, moment[user[now]])
        moment[user[now]] *= _MEMORY
        topics = world.topic[shown].ravel()
        np.add.at(moment, (np.repeat(user[now], SLOTS), topics), log["click"].to_numpy())
        number = pl.Series("rank", np.repeat(rank[now], SLOTS))
        logs.append(log.with_columns(number))
        truths.append(truth.with_columns(number))
    request = pl.format("r{}", pl.col("rank").cast(pl.String).str.zfill(7))
    return tuple(
        pl.concat(frames)
        .sort("rank", maintain_order=True)
        .with_columns(request_id=request)
        .drop("rank")
        for frames in (logs, truths)
    )


def _show(random: np.random.Generator, world: _World, requests: int) -> Ints:
    """Ten different items a request, popular ones more often, in random order: (R, 10)."""
    keys = world.popular + random.gumbel(size=(requests, len(world.popular)))
    return random.permuted(np.argpartition(-keys, SLOTS - 1, axis=1)[:, :SLOTS], axis=1)


def _exposures(
    random: np.random.Generator, w: _World, user: Ints, time: Ints, shown: Ints, moment: Floats
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Draw what R users do with the ten items each is shown.

    Args:
        random: the random number generator.
        w: the world.
        user: (R,).
        time: (R,) seconds.
        shown: (R, 10) items by position.
        moment: (R, T) the users' interest of the moment.

    Returns:
        Log and truth, R * 10 rows each.
    """
    u, i = np.repeat(user, SLOTS), shown.ravel()
    position = np.tile(np.arange(SLOTS), len(user))
    t, seconds = w.topic[i], np.repeat(time, SLOTS)
    hour = seconds // 3600 % 24
    fit = w.taste[u, t]
    recent = np.tanh(0.5 * moment[np.repeat(np.arange(len(user)), SLOTS), t])
    daytime = np.cos((hour - w.peak[t]) / 24 * 2 * np.pi)
    at = equations(
        fit=fit,
        quality=w.quality[i],
        bait=w.bait[i],
        appeal=w.appeal[i],
        eager=w.eager[u],
        generous=w.generous[u],
        sharing=w.sharing[i],
        author=w.author[i],
        daytime=daytime,
        recent=recent,
        length=np.log(w.length[i] / 600),
    )
    dwell_at, rating_at = at.pop("dwell"), at.pop("rating")
    p = {name: _sigmoid(logit) for name, logit in at.items()}
    p_click, p_like, p_share, p_follow, p_dislike, p_dislike_unclicked = (
        p[name] for name in ("click", "like", "share", "follow", "dislike", "dislike_unclicked")
    )

    def happens(p: Floats) -> NDArray[np.bool_]:
        return random.random(len(p)) < p

    looked = happens(_LOOKED[position])
    click = looked & happens(p_click)
    dwell = np.exp(random.normal(dwell_at, _DWELL_SPREAD)) * click
    rating = np.clip(np.rint(random.normal(rating_at, _RATING_SPREAD)), 1, 5)
    rated = click & happens(np.full(len(u), _ASKED))
    disliked = looked & happens(np.where(click, p_dislike, p_dislike_unclicked))
    log = pl.DataFrame(
        {
            "time": seconds,
            "user_id": _names("u", u),
            "item_id": _names("i", i),
            "country": pl.Series(_visible(w.country[u])).replace_strict(
                dict(enumerate(("BR", "DE", "FR", "IN", "JP", "MX", "NG", "US"))), default=None
            ),
            "age": pl.Series(_visible(w.age[u])),
            "topic": _names("topic", t, 2),
            "tags": _tags(w.tags)[i.tolist()],
            "length": w.length[i],
            "hour": hour,
            "position": position,
            "click": click.astype(np.int64),
            "dwell": dwell.round(3),
            "share": (click & happens(p_share)).astype(np.int64),
            "like": (click & happens(p_like)).astype(np.int64),
            "dislike": disliked.astype(np.int64),
            "follow": (click & happens(p_follow)).astype(np.int64),
            "rating": pl.Series(np.where(rated, rating, -1).astype(np.int64)).replace(-1, None),
        }
    )
    clicked = _LOOKED.mean() * p_click
    deep = 1 - _normal_cdf((math.log(_DEEP) - dwell_at) / _DWELL_SPREAD)
    above = [1 - _normal_cdf((k + 0.5 - rating_at) / _RATING_SPREAD) for k in range(1, 5)]
    truth = pl.DataFrame(
        {
            "item_id": log["item_id"],
            "click": clicked,
            "deep_click": clicked * deep,
            "share": clicked * p_share,
            "dwell": np.exp(dwell_at + _DWELL_SPREAD**2 / 2),
            "like": clicked * p_like,
            "dislike": _LOOKED.mean() * (p_click * p_dislike + (1 - p_click) * p_dislike_unclicked),
            "follow": clicked * p_follow,
            "rating": 1 + np.sum(above, axis=0),
        }
    )
    return log, truth


def equations(
    *,
    fit: Any,
    quality: Any,
    bait: Any,
    appeal: Any,
    eager: Any,
    generous: Any,
    sharing: Any,
    author: Any,
    daytime: Any,
    recent: Any,
    length: Any,
) -> dict[str, Any]:
    """The simulator's equations: where each label of a row lies, given all that decides it.

    Arrays may be of any library; `benchmarks/simulated_learnable.py` fits what users do not show.

    Args:
        fit: the user's taste in the item's topic.
        quality: of the item.
        bait: how much clickbait the item is.
        appeal: of the item's tags.
        eager: of the user, to click.
        generous: of the user, with likes and stars.
        sharing: of the item, to be shared.
        author: of the item, to be followed.
        daytime: 1 at the topic's best hour, -1 at its worst.
        recent: the user's interest of the moment in the topic.
        length: logarithm of the item's words over 600.

    Returns:
        Logits given that the user looks (`click`) or clicks (`like`, `share`, `follow`, `dislike`)
        or does not click (`dislike_unclicked`); the means of log seconds (`dwell`) and of stars
        before they are rounded (`rating`).
    """
    content = fit + quality - 0.9 * bait  # how satisfied the user will be
    interest = -1.2 + 1.1 * fit + 1.1 * bait + appeal + eager
    return {
        "click": interest + 0.4 * daytime + 0.7 * recent,
        "like": -1.2 + 1.1 * content + generous,
        "share": -1.8 + sharing + 0.5 * content,
        "follow": -2.2 + author + 0.8 * content,
        "dislike": -1.9 - 1.0 * content,
        "dislike_unclicked": -4.0 - 0.8 * fit,
        "dwell": 3.0 + 0.5 * content + 0.4 * length,
        "rating": 3.2 + 0.7 * content + 0.4 * generous,
    }


def _names(prefix: str, numbers: Ints, digits: int = 4) -> pl.Series:
    return prefix + pl.Series(numbers).cast(pl.String).str.zfill(digits)


def _visible(numbers: Ints) -> pl.Series:
    return pl.Series(numbers).replace(-1, None)


def _tags(tags: Ints) -> pl.Series:
    return pl.Series([[f"tag{tag:02d}" for tag in row if tag >= 0] for row in tags.tolist()])


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _normal_cdf(x: Floats) -> Floats:
    erf = np.frompyfunc(math.erf, 1, 1)
    return 0.5 * (1 + np.asarray(erf(x / math.sqrt(2)), np.float64))
