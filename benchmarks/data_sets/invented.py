"""Six logs of invented businesses, each of its own shape and by its own rules.

Their rules were written down before anything was trained on them, and were not changed after that.
Which rows are positive is drawn from a logistic of what the docstrings say.  `WORLDS` has them by
name; each writes files into an empty folder, the same for the same seed.

- `sports`, `groceries` and `music` log what users did and no impressions;
- `jobs`, `recipes` and `market` log lists that were shown.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.random import Generator
from numpy.typing import NDArray

START, DAY = 1_775_000_000, 86_400
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


def sports(folder: Path, seed: int) -> None:
    """Events in CSV, times in ms: readers view articles, and share or comment on some.

    Readers have a club that they read everything about, and otherwise read what is fresh: an
    article loses half of its pull in 18 hours.  Who reads to the end depends on length (short, or
    about the club) and on the hour: nobody reads long texts before nine.  Few readers comment.
    """
    rng = np.random.default_rng(seed)
    users, items, rows = 1200, 2500, 40_000
    club, words = rng.integers(0, 24, items), rng.lognormal(6, 0.6, items).astype(int)
    video, born = rng.random(items) < 0.3, np.sort(rng.uniform(0, 28, items))
    fan, talker = rng.integers(0, 24, users), rng.normal(-1, 1.5, users)
    user, day = _users(rng, users, rows), _days(rng, rows)
    item = np.empty(rows, np.int64)
    for at in range(rows):  # one of the articles of the last three days
        first, last = np.searchsorted(born, [day[at] - 3, day[at]])
        seen = np.arange(first, max(last, first + 1)) % items
        pull = 0.5 ** ((day[at] - born[seen]) / 0.75) * (1 + 9 * (club[seen] == fan[user[at]]))
        item[at] = rng.choice(seen, p=pull / pull.sum())
    hour, own = 24 * (day % 1), club[item] == fan[user]
    to_the_end = (words[item] < 300) | (own & (hour > 9)) | video[item]
    seconds = np.where(to_the_end, words[item] / 4, 12) * rng.lognormal(0, 0.5, rows)
    shared = happens(rng, -4 + 1.5 * own + 1.2 * video[item] + 0.8 * (hour > 20))
    commented = happens(rng, -4.5 + talker[user] + 1.5 * own - 1.0 * video[item])
    views = {
        "time_ms": _times(day) * 1000,
        "reader": user + 5000,
        "article": item + 70_000,
        "action": "view",
        "club": club[item],
        "words": words[item],
        "format": np.where(video[item], "video", "text"),
        "seconds_read": seconds.round(1),
    }
    frames = [pl.DataFrame(views)]
    for done, action, later in ((shared, "share", 40), (commented, "comment", 90)):
        more = (
            frames[0]
            .filter(pl.Series(done))
            .with_columns(
                pl.lit(action).alias("action"),
                pl.col("time_ms") + later * 1000,
                pl.lit(None, pl.Float64).alias("seconds_read"),
            )
        )
        frames.append(more)
    pl.concat(frames).sort("time_ms", maintain_order=True).write_csv(folder / "events.csv")


def groceries(folder: Path, seed: int) -> None:
    """Events in JSON lines, ISO times: shoppers open products, put them into the basket, buy.

    Each shopper has a highest price per category, above which nothing is bought, and buys the same
    few products again.  A discount counts for half of the shoppers only.  Baskets are bought or
    left whole: on Saturdays nearly always.
    """
    rng = np.random.default_rng(seed)
    users, items, rows = 1500, 900, 45_000
    aisle, price = rng.integers(0, 15, items), rng.lognormal(1.2, 0.7, items).round(2)
    popular = rng.pareto(1.2, items) + 0.1
    limit = 3.3 * rng.lognormal(0, 0.5, (users, 15))
    thrifty, usual = rng.random(users) < 0.5, rng.integers(0, items, (users, 6))
    user, day = _users(rng, users, rows), _days(rng, rows)
    own = rng.random(rows) < 0.4
    item = np.where(
        own,
        usual[user, rng.integers(0, 6, rows)],
        rng.choice(items, rows, p=popular / popular.sum()),
    )
    off = rng.random(rows) < 0.2
    paid = (price[item] * np.where(off, 0.75, 1)).round(2)
    dear = paid > limit[user, aisle[item]]
    basket = happens(rng, -1.2 + 1.5 * own - 3 * dear + 1.2 * (off & thrifty[user]))
    weekday = (day.astype(int) + 2) % 7
    bought = basket & happens(rng, -0.3 + 2.0 * (weekday == 5) + 0.8 * own)
    lines: list[tuple[int, dict[str, Any]]] = []
    for at, second in enumerate(_times(day).tolist()):
        one = {
            "shopper": f"s{user[at]}",
            "sku": f"{aisle[item[at]]:02d}-{item[at]:04d}",
            "aisle": f"aisle {aisle[item[at]]}",
            "price": float(paid[at]),
            "discount": bool(off[at]),
        }
        lines.append((second, {"event": "open"} | one))
        if basket[at]:
            lines.append((second + 20, {"event": "add_to_basket"} | one))
        if bought[at]:
            lines.append((second + 900, {"event": "purchase"} | one))
    with (folder / "shop.jsonl").open("w") as file:
        for second, event in sorted(lines, key=lambda line: line[0]):
            file.write(json.dumps({"at": _iso(second)} | event) + "\n")


def jobs(folder: Path, seed: int) -> None:
    """Lists in CSV and a table of offers: clicks and applications, by thresholds alone.

    Ids mean nothing.  A click needs the field or a salary a tenth above today's; an application
    also a way of at most 30 km, or remote work, and a level that is not below one's own.  Clicks
    fall with the place in the list.
    """
    rng = np.random.default_rng(seed)
    users, items, lists, size = 2500, 1600, 4500, 10
    field, level = rng.integers(0, 9, items), rng.integers(1, 5, items)
    salary = (30 + 12 * level + rng.normal(0, 8, items)).round(1)
    remote = rng.random(items) < 0.25
    x, y = rng.uniform(0, 120, items), rng.uniform(0, 120, items)
    own_field, own_level = rng.integers(0, 9, users), rng.integers(1, 5, users)
    today = (30 + 12 * own_level + rng.normal(0, 6, users)).round(1)
    home_x, home_y = rng.uniform(0, 120, users), rng.uniform(0, 120, users)
    user = np.repeat(_users(rng, users, lists), size)
    day, place = np.repeat(_days(rng, lists), size), np.tile(np.arange(1, size + 1), lists)
    item = rng.integers(0, items, lists * size)
    km = np.hypot(x[item] - home_x[user], y[item] - home_y[user]).round(1)
    fits = own_field[user] == field[item]
    better = salary[item] > 1.1 * today[user]
    click = happens(rng, -3.2 + 1.8 * fits + 1.4 * (fits & better) + 0.7 * better - 0.12 * place)
    near = (km < 30) | remote[item]
    apply = click & happens(rng, -2.5 + 2.2 * near + 1.2 * (level[item] >= own_level[user]))
    pl.DataFrame(
        {
            "shown_at": _times(day),
            "list": np.repeat(np.arange(lists), size),
            "candidate": user,
            "offer": item,
            "position": place,
            "distance_km": pl.Series(km).set(pl.Series(rng.random(len(km)) < 0.1), None),
            "candidate_field": [f"field {code}" for code in own_field[user]],
            "candidate_level": own_level[user],
            "salary_now": today[user],
            "clicked": click.astype(int),
            "applied": apply.astype(int),
        }
    ).write_csv(folder / "lists.csv")
    pl.DataFrame(
        {
            "offer": np.arange(items),
            "field": [f"field {code}" for code in field],
            "level": level,
            "salary": salary,
            "remote": remote.astype(int),
            "agency": rng.integers(0, 200, items),
        }
    ).write_csv(folder / "offers.csv")


def music(folder: Path, seed: int) -> None:
    """Plays in CSV and a table of listeners: seconds, skips and likes, by latent factors.

    Listeners and tracks have eight factors each; their product decides.  Genres follow one factor
    loosely.  In the car (mornings and evenings of weekdays) nobody skips with one's hands on the
    wheel.  Older listeners skip less.
    """
    rng = np.random.default_rng(seed)
    users, items, rows = 800, 1500, 55_000
    of_user, of_item = rng.normal(0, 1, (users, 8)), rng.normal(0, 0.5, (items, 8))
    genre = np.digitize(of_item[:, 0] + rng.normal(0, 0.4, items), [-0.7, -0.3, 0, 0.3, 0.7])
    length, year = rng.normal(210, 40, items).clip(90), rng.integers(1970, 2026, items)
    age, country = rng.integers(14, 75, users), rng.integers(0, 6, users)
    sessions = rows // 11
    user = np.repeat(_users(rng, users, sessions), 11)
    day = np.repeat(_days(rng, sessions), 11) + np.tile(np.arange(11), sessions) * 200 / DAY
    popular = rng.pareto(1.5, items) + 0.2
    item = rng.choice(items, len(user), p=popular / popular.sum())
    taste = (of_user[user] * of_item[item]).sum(axis=1)
    hour, weekday = 24 * (day % 1), day.astype(int) % 7
    car = (weekday < 5) & (((hour > 7) & (hour < 9)) | ((hour > 17) & (hour < 19)))
    skip = happens(rng, -0.7 - 1.1 * taste - 1.5 * car - 0.02 * (age[user] - 40))
    like = ~skip & happens(rng, -3.6 + 1.3 * taste)
    seconds = np.where(skip, rng.uniform(2, 45, len(user)), length[item]).round(1)
    pl.DataFrame(
        {
            "played_at": _times(day),
            "session": [f"p{at}" for at in np.repeat(np.arange(sessions), 11)],
            "listener": [f"l{one}" for one in user],
            "track": [f"t{one}" for one in item],
            "genre": [f"g{one}" for one in genre[item]],
            "year": year[item],
            "seconds": seconds,
            "skipped": skip.astype(int),
            "liked": like.astype(int),
        }
    ).sort("played_at", maintain_order=True).write_csv(folder / "plays.csv")
    pl.DataFrame(
        {
            "listener": [f"l{one}" for one in range(users)],
            "age": pl.Series(age).set(pl.Series(rng.random(users) < 0.15), None),
            "country": [f"c{one}" for one in country],
        }
    ).write_csv(folder / "listeners.csv")


def recipes(folder: Path, seed: int) -> None:
    """Lists in JSON lines and a table of recipes: opened, cooked, and stars of some that were.

    Each user cannot stand four of forty ingredients, and avoids a recipe that names one.  On
    weekdays nobody cooks for longer than 45 minutes.  Some recipes are simply better.  Stars fall
    with the minutes that it took beyond what was promised.
    """
    rng = np.random.default_rng(seed)
    users, items, lists, size = 1400, 700, 5000, 6
    food = [f"ingredient {one}" for one in range(40)]
    parts = [rng.choice(40, rng.integers(3, 9), replace=False) for _ in range(items)]
    holds = np.zeros((items, 40), bool)
    for at, one in enumerate(parts):
        holds[at, one] = True
    minutes, good = (5 * rng.integers(2, 24, items)), rng.normal(0, 0.6, items)
    hates = np.argsort(rng.random((users, 40)), axis=1)[:, :4]
    bold = rng.normal(0, 0.7, users)
    user = np.repeat(_users(rng, users, lists), size)
    day = np.repeat(_days(rng, lists), size)
    item = rng.integers(0, items, lists * size)
    place = np.tile(np.arange(size), lists)
    bad = holds[item[:, None], hates[user]].any(axis=1)
    weekend = (day.astype(int) % 7) >= 5
    opened = happens(rng, -0.9 + good[item] + bold[user] - 2 * bad - 0.25 * place)
    long = (minutes[item] > 45) & ~weekend
    cooked = opened & happens(rng, -0.6 + 0.8 * good[item] - 1.5 * bad - 2.5 * long)
    late = rng.normal(0, 1, len(user)) + (minutes[item] < 20)
    stars = (4.2 + good[item] - 0.6 * late.clip(0) + rng.normal(0, 0.5, len(user))).round()
    rated = cooked & (rng.random(len(user)) < 0.4)
    with (folder / "feed.jsonl").open("w") as file:
        for at, second in enumerate(_times(day).tolist()):
            row: dict[str, Any] = {
                "timestamp": second,
                "feed": f"f{at // size}",
                "cook": f"u{user[at]}",
                "recipe": f"r{item[at]}",
                "slot": int(place[at]),
                "opened": bool(opened[at]),
                "cooked": bool(cooked[at]),
            }
            if rated[at]:
                row["stars"] = int(stars[at].clip(1, 5))
            file.write(json.dumps(row) + "\n")
    with (folder / "recipes.jsonl").open("w") as file:
        for at, one in enumerate(parts):
            names = [food[part] for part in one]
            title = f"{rng.choice(['quick', 'slow', 'classic'])} {names[0]} with {names[1]}"
            row = {"recipe": f"r{at}", "title": title, "ingredients": names}
            file.write(json.dumps(row | {"minutes": int(minutes[at])}) + "\n")


def market(folder: Path, seed: int) -> None:
    """Lists in CSV, one file a week: second-hand offers, most of them a few days old.

    A buyer writes if the price is below what the category and the condition are worth, unless it is
    so low that it looks like a trap, and the way is short; everybody has a longest way.  Sellers
    differ in whether they answer, and so in whether they sell.
    """
    rng = np.random.default_rng(seed)
    users, items, lists, size = 3000, 6000, 6000, 8
    kind, condition = rng.integers(0, 12, items), rng.integers(1, 6, items)
    worth = np.exp(rng.normal(4, 0.8, 12))[kind] * (0.4 + 0.15 * condition)
    price = (worth * rng.lognormal(0, 0.5, items)).round()
    seller = rng.integers(0, 900, items)
    answers, born = rng.normal(0, 1, 900), np.sort(rng.uniform(-3, 28, items))
    farthest, wants = rng.lognormal(2.8, 0.6, users), rng.integers(0, 12, (users, 2))
    list_user, list_day = _users(rng, users, lists), _days(rng, lists)
    last = np.searchsorted(born, list_day)
    age = rng.integers(0, 600, (lists, size))
    item = (last[:, None] - 1 - age).clip(0).ravel()
    user, day = np.repeat(list_user, size), np.repeat(list_day, size)
    place = np.tile(np.arange(1, size + 1), lists)
    km = rng.lognormal(2.5, 0.9, len(user)).round(1)
    ratio = price[item] / worth[item]
    cheap = (ratio < 0.9) & (ratio > 0.45)
    wanted = (wants[user] == kind[item][:, None]).any(axis=1)
    score = -4 + 1.6 * cheap + 1.8 * wanted - 2.5 * (km > farthest[user]) - 0.1 * place
    viewed = happens(rng, score + 2.2)
    wrote = viewed & happens(rng, score + 2.6)
    sold = wrote & happens(rng, -1 + answers[seller[item]] + 0.5 * (condition[item] > 3))
    table = pl.DataFrame(
        {
            "ts": [_iso(second) for second in _times(day).tolist()],
            "search_id": np.repeat(np.arange(lists), size),
            "buyer_id": [f"b{one}" for one in user],
            "offer_id": [f"o{one}" for one in item],
            "rank": place,
            "category": [f"cat{one}" for one in kind[item]],
            "condition": condition[item],
            "price_eur": price[item],
            "distance_km": km,
            "seller_id": seller[item],
            "pictures": rng.poisson(4, items)[item],
            "viewed": viewed.astype(int),
            "message_sent": wrote.astype(int),
            "sold": sold.astype(int),
        }
    )
    week = pl.Series((day // 7).astype(int))
    for one in week.unique(maintain_order=True):
        table.filter(week == one).write_csv(folder / f"week-{one}.csv")


WORLDS: dict[str, Callable[[Path, int], None]] = {
    one.__name__: one for one in (sports, groceries, jobs, music, recipes, market)
}


def _users(rng: Generator, users: int, rows: int) -> Codes:
    """Who comes, (rows,): few come often."""
    often = rng.pareto(1.6, users) + 0.3
    return rng.choice(users, rows, p=often / often.sum())


def _days(rng: Generator, rows: int) -> Floats:
    """When, in days since the log began, ascending; more in the evening."""
    day = rng.integers(0, 28, rows) + (rng.normal(17, 5, rows) % 24) / 24
    return np.sort(day)


def _times(day: Floats) -> Codes:
    """Seconds since 1970."""
    return (START - START % DAY + DAY * day).astype(np.int64)


def _iso(second: int) -> str:
    return str(np.datetime64(second, "s")) + "Z"


def sigmoid(logit: Any) -> Any:
    return 1 / (1 + np.exp(-logit))


def happens(rng: Generator, logit: Floats) -> NDArray[np.bool_]:
    """Draw what has these logits, (rows,)."""
    return rng.random(len(logit)) < sigmoid(logit)
