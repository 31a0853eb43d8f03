"""Six more logs of invented businesses, by another hand and of other shapes than `invented.py`.

Their author had not seen the model or the code of `multigate init`, but some of what the docs say
of it, and the beginning of `invented.py`'s `sports`; nothing was changed after a training on them.
`WORLDS` has them by name; each writes files into a folder, the same for the same seed.

- `sports`: events of a news site, JSON lines, ISO times, articles in each event.  Readers follow
  teams that no column of theirs tells; articles age within hours; long texts are read at home;
- `groceries`: events of a shop, CSV by week, milliseconds, products in a file of their own.
  Favourites are bought again, when they run out; limits of price differ by household;
- `jobs`: lists of results, one TSV, seconds, jobs and candidates in files of their own.  Thresholds
  and interactions of numbers decide, ids mean nothing: a world for trees;
- `music`: plays in JSON lines, milliseconds, users in CSV.  Hidden factors of listeners and
  artists decide, of which genres tell little: a world for factors;
- `recipes`: lists in an app, CSV, ISO times, recipes with lists of ingredients in JSON lines.
  Some never touch some ingredients, and nobody cooks for an hour on a Tuesday;
- `market`: pages of second-hand goods, CSV by day, dates and times as text.  Goods come and go
  within days; bargains, distance and photos decide by steps, ids mean nothing: for trees again.

All have heavy-tailed activity, columns of noise, columns that go together, and missing values.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from data_sets.invented import happens, sigmoid
from numpy.random import Generator
from numpy.typing import NDArray

START = 1_767_571_200  # a Monday, 2026-01-05
DAY = 86_400
Array = NDArray[Any]

GOODS = ["rice", "beans", "chicken", "tofu", "lemon", "garlic", "cream", "chili", "peanuts"]
GOODS += ["basil", "potato", "lentils", "shrimp", "mushroom", "tomato", "feta", "coconut", "egg"]


def shares(values: int, power: float) -> Array:
    """Of the values of a heavy-tailed category."""
    found = np.arange(1, values + 1) ** -power
    return found / found.sum()


def who(rng: Generator, users: int, rows: int) -> Array:
    """The user of each row: few are there very often, most hardly ever."""
    activity = np.minimum(rng.pareto(1.4, users) + 0.15, 30)
    return rng.choice(users, rows, p=activity / activity.sum())


def when(rng: Generator, rows: int, days: int) -> Array:
    """Sorted times in days; most are in the evening, few at night."""
    hour = np.where(rng.random(rows) < 0.55, rng.normal(19.5, 2, rows), rng.normal(12, 4, rows))
    return np.sort(rng.integers(0, days, rows) + hour % 24 / 24)


def codes(values: Array) -> Array:
    """Numbers of the values, in their order of appearance in the sorted list of them."""
    return np.unique(values, return_inverse=True)[1]


def holes(values: Array, missing: Array) -> pl.Series:
    return pl.Series(values).set(pl.Series(missing), None)


def sku(items: Array) -> list[str]:
    return [f"P-{one:05d}" for one in items]


def said(table: pl.DataFrame, event: str, later: int, *, price: bool) -> pl.DataFrame:
    """The rows as events of a type, some milliseconds later; what was paid where it is known."""
    paid = (
        (pl.col("unit_price") * pl.col("quantity")).round(2) if price else pl.lit(None, pl.Float64)
    )
    return table.select(
        pl.col("timestamp") + later,
        pl.lit(event).alias("event"),
        "customer_id",
        "sku",
        "unit_price",
        paid.alias("amount"),
        "store",
    )


def seconds(day: Array) -> Array:
    return np.round(START + day * DAY).astype(np.int64)


def millis(day: Array) -> Array:
    return np.round((START + day * DAY) * 1000).astype(np.int64)


def iso(day: float, later: float = 0) -> str:
    return datetime.fromtimestamp(int(START + day * DAY + later), UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


def stamp(day: float) -> str:
    return datetime.fromtimestamp(int(START + day * DAY), UTC).strftime("%Y-%m-%d %H:%M:%S")


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def sports(folder: Path, seed: int) -> None:
    """Views of articles, with how long they were read; shares and comments."""
    rng = np.random.default_rng(seed)
    users, articles, views, teams = 2200, 1400, 34_000, 40
    born = np.sort(rng.uniform(-3, 30, articles))
    team = rng.choice(teams, articles, p=shares(teams, 0.8))
    kind = rng.choice(["report", "transfer", "interview", "live"], articles, p=[0.5, 0.2, 0.2, 0.1])
    words = np.round(rng.lognormal(6, 0.6, articles)).astype(int)
    pull = rng.gumbel(0, 0.7, articles)
    fan = np.where(rng.random((users, teams)) < 0.05, rng.uniform(1, 4, (users, teams)), 0)
    patience, talks = rng.normal(0, 0.6, users), rng.normal(0, 1.2, users)
    user, day = who(rng, users, views), when(rng, views, 30)
    first, last = np.searchsorted(born, day - 2), np.searchsorted(born, day)
    seen = first[:, None] + (rng.random((views, 25)) * (last - first)[:, None]).astype(int)
    wish = pull[seen] + fan[user[:, None], team[seen]] - (day[:, None] - born[seen]) / 0.5
    item = seen[np.arange(views), (wish + rng.gumbel(0, 1, seen.shape)).argmax(1)]
    loves, age, hour = fan[user, team[item]], day - born[item], day % 1 * 24
    phone = rng.random(views) < np.where((hour > 7) & (hour < 19), 0.85, 0.4)
    tired = (words[item] > 600) & phone & (loves < 1)
    part = sigmoid(0.3 + patience[user] + 0.6 * np.minimum(loves, 2) - 1.6 * tired - (age > 1))
    read = np.where(rng.random(views) < part, words[item] / 4, 6) * rng.lognormal(0, 0.5, views)
    hot = (kind[item] == "transfer") & (age < 0.25)
    shared = happens(rng, -4.6 + 0.9 * talks[user] + 1.8 * hot + 0.9 * (loves > 2) + pull[item] / 2)
    heated = (kind[item] == "live") & (hour > 18) & (loves > 0)
    comments = happens(rng, -4.8 + talks[user] + 2.2 * heated + 0.8 * (loves > 2.5))
    lines = []
    for kinds, rows in (("view", np.arange(views)), ("share", shared), ("comment", comments)):
        for row in rows if kinds == "view" else np.flatnonzero(rows):
            late = 0 if kinds == "view" else read[row] + rng.exponential(40)
            at = item[row]
            one: dict[str, Any] = {"ts": iso(day[row], late), "event": kinds}
            one |= {"reader": f"r{user[row]:05d}", "article": int(70_000 + at)}
            one |= {"team": f"team-{team[at]}", "kind": kind[at], "words": int(words[at])}
            one |= {"published": iso(born[at]), "device": "phone" if phone[row] else "desktop"}
            one |= {"read_seconds": round(read[row], 1)} if kinds == "view" else {}
            lines.append(one | {"edge": f"cdn{rng.integers(5)}"})
    write_lines(folder / "events.jsonl", sorted(lines, key=lambda line: line["ts"]))


def groceries(folder: Path, seed: int) -> None:
    """Searches, products looked at, put into the basket and bought."""
    rng = np.random.default_rng(seed)
    users, products, looks, shelves = 1300, 1600, 36_000, 24
    shelf, brand = rng.integers(0, shelves, products), rng.choice(70, products, p=shares(70, 0.7))
    usual = np.round(
        np.exp(rng.normal(0.9, 0.35, shelves)[shelf] + rng.normal(0, 0.5, products)), 2
    )
    known = rng.gumbel(0, 0.8, products)
    size, income = rng.integers(1, 6, users), rng.choice(["low", "middle", "high"], users)
    limit = rng.lognormal(1.3, 0.3, users) * np.array([0.7, 1, 1.8])[codes(income)]
    favourites = rng.integers(0, products, (users, 14))
    user, day = who(rng, users, looks), when(rng, looks, 42)
    anything = rng.choice(products, looks, p=np.exp(known) / np.exp(known).sum())
    chosen = favourites[user, rng.integers(0, 14, looks)]
    item = np.where(rng.random(looks) < 0.35, chosen, anything)
    week = (day // 7).astype(int)
    off = np.where(rng.random((6, products)) < 0.12, rng.choice([0.1, 0.25, 0.4], (6, products)), 0)
    price = np.round(usual[item] * (1 - off[week, item]), 2)
    own = (favourites[user] == item[:, None]).any(1)
    gone = np.full(looks, 30.0)  # days since this user last bought this product
    added, bought, last = (
        np.zeros(looks, bool),
        np.zeros(looks, bool),
        dict[tuple[int, int], float](),
    )
    for row in range(looks):
        pair = (int(user[row]), int(item[row]))
        gone[row] = day[row] - last.get(pair, -30)
        logit = -2.3 + 2.2 * own[row] * (gone[row] > 4) - 1.3 * (gone[row] < 2)
        logit += 1.4 * (off[week[row], item[row]] >= 0.25) * (income[user[row]] != "high")
        logit -= 1.7 * (price[row] > limit[user[row]]) - 0.3 * known[item[row]]
        added[row] = rng.random() < sigmoid(logit)
        weekend = day[row] % 7 >= 4
        pays = sigmoid(0.1 + 0.9 * weekend * (size[user[row]] > 2) - 0.8 * (price[row] > 6))
        bought[row] = added[row] and rng.random() < pays
        last |= {pair: day[row]} if bought[row] else {}
    events = {"timestamp": millis(day), "customer_id": 100_000 + user, "sku": sku(item)}
    events |= {"unit_price": price, "quantity": 1 + rng.poisson(0.15 * size[user])}
    table = pl.DataFrame(events | {"store": rng.integers(1, 9, users)[user]})
    parts = [said(table, "view_product", 0, price=False)]
    parts.append(said(table.filter(added), "add_to_basket", 20_000, price=False))
    parts.append(said(table.filter(bought), "purchase", 900_000, price=True))
    found = said(table.filter(rng.random(looks) < 0.2), "search", -8_000, price=False)
    parts.append(found.with_columns(sku=pl.lit(None, pl.String)))
    everything = pl.concat(parts).sort("timestamp", maintain_order=True)
    weeks = (everything["timestamp"] // 1000 - START) // (7 * DAY)
    for number, rows in everything.group_by(weeks.alias("week"), maintain_order=True):
        rows.drop("week", strict=False).write_csv(folder / f"events_w{number[0]}.csv")
    brands = pl.Series([f"brand {one}" for one in brand]).set(pl.Series(brand > 55), None)
    about = {"sku": sku(np.arange(products)), "shelf": shelf, "brand": brands, "list_price": usual}
    pl.DataFrame(about | {"grams": np.round(usual * 130, -1)}).write_csv(folder / "products.csv")
    people = {"customer_id": 100_000 + np.arange(users), "household": size, "income": income}
    pl.DataFrame(people).write_csv(folder / "customers.csv")


def jobs(folder: Path, seed: int) -> None:
    """Lists of job ads: opened, applied for; what decides are numbers of ad and candidate."""
    rng = np.random.default_rng(seed)
    users, ads, lists, length = 1800, 2600, 4200, 10
    field, born = rng.integers(0, 9, ads), np.sort(rng.uniform(-20, 28, ads))
    years_min = rng.choice([0, 1, 2, 3, 5, 8], ads)
    base = np.array([31, 34, 36, 40, 44, 47, 52, 55, 60])[field] * 1000
    salary = np.round(base * (1 + 0.06 * years_min) * rng.lognormal(0, 0.18, ads), -2)
    hours, remote = rng.choice([16, 24, 32, 36, 40], ads), rng.random(ads) < 0.2
    east, north = rng.uniform(0, 120, (2, ads))
    own_field, years = rng.integers(0, 9, users), np.round(rng.gamma(1.6, 3.5, users), 1)
    least = np.round(base.mean() * (0.7 + 0.045 * years) * rng.lognormal(-0.05, 0.2, users), -3)
    home, car = rng.uniform(0, 120, (2, users)), rng.random(users) < 0.6
    asker, day = who(rng, users, lists), when(rng, lists, 28)
    last = np.searchsorted(born, day)
    user, place = np.repeat(asker, length), np.tile(np.arange(length), lists)
    pool = np.array([rng.choice(to, 60, replace=False) for to in last])
    near = own_field[asker][:, None] == field[pool]
    order = np.argsort(near * rng.choice([0, 2], near.shape) + rng.random(near.shape), axis=1)
    item = np.take_along_axis(pool, order[:, -length:], 1).ravel()
    away = np.hypot(east[item] - home[0, user], north[item] - home[1, user])
    far = (away > np.where(car[user], 45, 18)) & ~remote[item]
    paid, lacks = salary[item] / least[user], years_min[item] - years[user]
    shown = rng.random(ads) > 0.25  # a quarter of the ads do not tell the salary
    fits, mine = (lacks <= 0) & (lacks > -6), field[item] == own_field[user]
    pull = 1.5 * mine + 1.1 * fits * mine - 1.4 * far + 1.2 * shown[item] * (paid > 1.05)
    pull -= 0.9 * shown[item] * (paid < 0.9) + 0.5 * (~shown[item] & (years[user] > 6))
    click = happens(rng, -2.2 + pull - 0.55 * np.log1p(place) + rng.normal(0, 0.3, users)[user])
    part = (hours[item] < 32) & (least[user] < 38_000)
    apply = -2.4 + 1.5 * fits - 1.6 * (lacks > 2) - 0.9 * far + 1.2 * (paid > 1.15) + 1.3 * part
    applied = click & happens(rng, apply)
    rows = {"ts": seconds(day).repeat(length), "search_id": 5_000_000 + np.arange(lists).repeat(10)}
    rows |= {"candidate": 9000 + user, "job": 310_000 + item, "position": place + 1}
    rows |= {"distance_km": np.round(away, 1), "bucket": rng.integers(0, 100, users)[user]}
    rows |= {"browser": rng.choice(["ff", "chrome", "edge"], lists).repeat(length)}
    done = {"clicked": click.astype(int), "applied": applied.astype(int)}
    pl.DataFrame(rows | done).write_csv(folder / "impressions.tsv", separator="\t")
    about = {"job": 310_000 + np.arange(ads), "field": field, "salary": holes(salary, ~shown)}
    about |= {"min_years": years_min, "hours": hours, "remote": remote.astype(int)}
    about |= {"posted": seconds(born), "monthly_pay": holes(np.round(salary / 12), ~shown)}
    pl.DataFrame(about).write_csv(folder / "jobs.tsv", separator="\t")
    person = {"candidate": 9000 + np.arange(users), "experience": years, "wanted_field": own_field}
    person |= {"min_salary": holes(least, rng.random(users) < 0.15), "has_car": car.astype(int)}
    pl.DataFrame(person).write_csv(folder / "candidates.tsv", separator="\t")


def music(folder: Path, seed: int) -> None:
    """Plays with the seconds heard, skips and likes; factors that no column tells."""
    rng = np.random.default_rng(seed)
    users, tracks, artists, sessions, size = 1000, 2400, 320, 5200, 8
    of_artist = rng.normal(0, 1, (artists, size))
    artist = rng.choice(artists, tracks, p=shares(artists, 0.9))
    factors = 0.85 * of_artist[artist] + 0.5 * rng.normal(0, 1, (tracks, size))
    genre = np.where(rng.random(artists) < 0.3, rng.integers(0, 12, artists), 0)
    genre = np.where(genre == 0, (of_artist[:, :4] > 0) @ np.array([1, 2, 4, 0]) + 1, genre)
    length = np.clip(rng.normal(210, 45, tracks), 90, 420).round().astype(int)
    tempo = np.round(rng.normal(118, 22, tracks) + 8 * factors[:, 0])
    age, country = rng.integers(15, 66, users), rng.choice(["DE", "FR", "PL", "BR", "JP"], users)
    place = rng.normal(0, 0.5, (5, size))[codes(country)]
    taste = 0.9 * rng.normal(0, 1, (users, size)) + place + 0.5 * (age < 25)[:, None] * of_artist[0]
    listener, start = who(rng, users, sessions), when(rng, sessions, 45)
    many = np.minimum(1 + rng.geometric(0.15, sessions), 30)
    session, user = np.arange(sessions).repeat(many), listener.repeat(many)
    radio = rng.random(sessions) < 0.6
    fame = rng.gumbel(0, 0.8, tracks)
    choice = rng.integers(0, tracks, (len(user), 12))
    match = (taste[user][:, None] * factors[choice]).sum(2) / np.sqrt(size)
    wish = np.where(radio[session], 0.3, 1.0)[:, None] * match + fame[choice]
    item = choice[np.arange(len(user)), (wish + rng.gumbel(0, 1, wish.shape)).argmax(1)]
    liking = (taste[user] * factors[item]).sum(1) / np.sqrt(size)
    nth = np.arange(len(user)) - np.repeat(np.cumsum(many) - many, many)
    at = start[session] + nth * 150 / DAY
    calm = ((at % 1 < 0.25) | (at % 1 > 0.9)) & (tempo[item] > 130)
    fussy = rng.normal(0, 0.7, users)[user]
    skipped = happens(rng, -1.1 - 1.2 * liking + fussy + 0.9 * calm + 0.4 * radio[session])
    warm = 1.2 * liking + 1.0 * (liking > 1.2) * (nth < 8)
    liked = ~skipped & happens(rng, -3.9 + warm + rng.normal(0, 1, users)[user])
    heard = np.where(skipped, rng.exponential(25, len(user)), rng.uniform(0.8, 1, len(user)) * 999)
    heard = np.minimum(heard, length[item] * rng.choice([1, 1, 0.9], len(user))).round(1)
    columns = {
        "played_at": millis(at),
        "session": session,
        "user": [f"usr_{one:x}" for one in user],
    }
    columns |= {"track": [f"t{one}" for one in 8000 + 3 * item], "artist": 500 + artist[item]}
    columns |= {"genre": [f"g{one}" for one in genre[artist[item]]], "length_s": length[item]}
    columns |= {"bpm": holes(tempo[item], rng.random(tracks)[item] < 0.2)}
    columns |= {"source": np.where(radio[session], "radio", "library"), "nth": nth}
    columns |= {"bitrate": rng.choice([128, 256, 320], len(user)), "listened_s": heard}
    table = pl.DataFrame(columns | {"skipped": skipped, "liked": liked}).sort("played_at")
    table.write_ndjson(folder / "plays.ndjson")
    person = {"user": [f"usr_{one:x}" for one in range(users)], "country": country}
    person |= {"age": holes(age, rng.random(users) < 0.2)}
    pl.DataFrame(person).write_csv(folder / "users.csv")


def recipes(folder: Path, seed: int) -> None:
    """Six recipes a visit: opened, cooked, and stars by some who cooked."""
    rng = np.random.default_rng(seed)
    users, dishes, visits, length = 2600, 900, 6200, 6
    kitchens = ["Thai", "Italian", "Mexican", "Indian", "French", "Greek", "Korean"]
    stuff = [f"{a} {b}" for a in ("fresh", "dried") for b in GOODS] + GOODS
    kitchen, main = rng.integers(0, 7, dishes), rng.integers(0, len(GOODS), dishes)
    typical = rng.dirichlet(np.full(len(stuff), 0.25), 7) + 0.003
    typical /= typical.sum(1, keepdims=True)
    parts = [
        rng.choice(len(stuff), rng.integers(3, 11), replace=False, p=typical[one])
        for one in kitchen
    ]
    has = np.zeros((dishes, len(stuff)), bool)
    for dish, found in enumerate(parts):
        has[dish, found] = has[dish, main[dish]] = True
    minutes = np.clip(5 * np.round(has.sum(1) * rng.lognormal(1.5, 0.5, dishes) / 5), 5, 180)
    mood = rng.choice(["quick", "lazy", "festive", "light", "hearty"], dishes)
    never = rng.random((users, len(stuff))) < 0.06
    taste, skill = rng.normal(0, 0.9, (users, 7)), rng.normal(0, 1, users)
    sweet = rng.normal(0, 0.5, (users, 5))
    good = rng.normal(0, 0.5, dishes)
    visitor, day = who(rng, users, visits), when(rng, visits, 35)
    user, place = visitor.repeat(length), np.tile(np.arange(length), visits)
    item = np.argsort(rng.random((visits, dishes)) + 0.1 * good, 1)[:, -length:].ravel()
    at = day.repeat(length)
    bad = (never[user] & has[item]).sum(1)
    weekday = at % 7 < 4.7
    hurry = weekday & (at % 1 > 0.65) & (minutes[item] > 35)
    like = taste[user, kitchen[item]] + sweet[user, codes(mood)[item]] + good[item]
    opened = happens(rng, -1.5 + like - 0.9 * (bad > 0) - 0.8 * hurry - 0.12 * place)
    hard = (has[item].sum(1) > 7) & (skill[user] < 0.3)
    cooks = -1.2 + 0.7 * like - 2.5 * (bad > 0) - 1.8 * hurry - 1.2 * hard
    cooked = opened & happens(rng, cooks + 0.8 * (~weekday & (minutes[item] > 60)))
    stars = np.clip(np.round(3.9 + 0.6 * like - hard + rng.normal(0, 0.7, len(user))), 1, 5)
    quiet = ~cooked | (rng.random(len(user)) > 0.35)
    feed = np.arange(visits).repeat(length)
    rows: dict[str, Any] = {"shown_at": [iso(one) for one in at], "feed": [f"f-{n}" for n in feed]}
    rows |= {"member": [f"m{one}" for one in user], "recipe": [f"rc-{one:04d}" for one in item]}
    rows |= {"slot": place, "app_version": rng.choice(["4.1", "4.2", "5.0"], users)[user]}
    done = {
        "opened": opened.astype(int),
        "cooked": cooked.astype(int),
        "rating": holes(stars, quiet),
    }
    pl.DataFrame(rows | done).write_csv(folder / "feed_log.csv")
    about = [
        {
            "recipe": f"rc-{dish:04d}",
            "title": f"{mood[dish].title()} {kitchens[kitchen[dish]]} {GOODS[main[dish]]}",
            "ingredients": [stuff[one] for one in np.flatnonzero(has[dish])],
            "minutes": None if rng.random() < 0.1 else int(minutes[dish]),
            "kcal": int(90 * has[dish].sum() + rng.normal(0, 80)),
        }
        for dish in range(dishes)
    ]
    write_lines(folder / "recipes.jsonl", about)


def market(folder: Path, seed: int) -> None:
    """Pages of second-hand goods, most of them new: messages to sellers, and sales."""
    rng = np.random.default_rng(seed)
    users, goods, pages, length, kinds = 3200, 9000, 3800, 12, 14
    born = np.sort(rng.uniform(-4, 24, goods))
    kind, state = rng.integers(0, kinds, goods), rng.choice(4, goods, p=[0.15, 0.35, 0.35, 0.15])
    new_price = np.round(np.exp(rng.normal(4, 0.8, kinds)[kind] + rng.normal(0, 0.5, goods)), 0)
    worth = new_price * np.array([0.75, 0.55, 0.4, 0.15])[state]
    price = np.maximum(np.round(worth * rng.lognormal(0.05, 0.4, goods)), 1)
    photos, ship = rng.poisson(3.2, goods), rng.random(goods) < 0.45
    stars = np.round(np.clip(rng.normal(4.4, 0.5, goods), 1, 5), 1)
    purse, dealer = rng.lognormal(4.2, 0.8, users), rng.random(users) < 0.08
    wants = rng.dirichlet(np.full(kinds, 0.3), users)
    looker, day = who(rng, users, pages), when(rng, pages, 24)
    first, last = np.searchsorted(born, day - 3.5), np.searchsorted(born, day)
    pool = np.array(
        [rng.choice(np.arange(*two), 80, replace=False) for two in zip(first, last, strict=True)]
    )
    score = np.log(wants[looker[:, None], kind[pool]] + 0.03) + rng.gumbel(0, 1, pool.shape)
    item = np.take_along_axis(pool, np.argsort(-score, 1)[:, :length], 1).ravel()
    user, at, place = looker.repeat(length), day.repeat(length), np.tile(np.arange(length), pages)
    away = np.round(rng.gamma(1.4, 14, len(user)), 1)
    cheap, age = price[item] / worth[item], at - born[item]
    bargain = (cheap < 0.75) & (state[item] < 3) & (stars[item] > 3.5)
    fishy = (cheap < 0.5) & (photos[item] < 2)
    bulky = kind[item] < 4
    far = (away > np.where(bulky, 15, 35)) & (~ship[item] | bulky)
    pull = 1.5 * bargain - 2.2 * fishy - 1.3 * far - 1.2 * (cheap > 1.3) + 1.1 * (age < 0.2)
    pull += 0.5 * (photos[item] >= 4) - 1.3 * (price[item] > purse[user])
    pull += dealer[user] * (1.8 * bargain * (age < 0.5) - 0.8) + 0.9 * (
        wants[user, kind[item]] > 0.3
    )
    writes = happens(rng, -2.6 + pull - 0.06 * place + rng.normal(0, 0.4, users)[user])
    evening = (at % 1 > 0.72) & (away < 12)
    deal = happens(
        rng, -1.2 + 1.4 * evening + 0.9 * bargain - (age > 2) + 0.8 * ship[item] * ~bulky
    )
    rows = {
        "shown": [stamp(one) for one in at],
        "page": (880_000 + np.arange(pages)).repeat(length),
    }
    rows |= {"user_id": 40_000 + 7 * user, "ad_id": 12_000_000 + 13 * item, "rank": place}
    rows |= {"category": [f"c{one:02d}" for one in kind[item]], "price": price[item]}
    rows |= {"condition": np.array(["new", "as new", "used", "worn"])[state[item]]}
    rows |= {"new_price": holes(new_price[item], rng.random(goods)[item] < 0.35)}
    rows |= {"distance_km": away, "photos": photos[item], "shipping": ship[item].astype(int)}
    rows |= {"seller_stars": holes(stars[item], rng.random(goods)[item] < 0.3)}
    rows |= {
        "hours_online": np.round(24 * age, 1),
        "title_length": rng.integers(8, 60, goods)[item],
    }
    rows |= {"message_sent": writes.astype(int), "sold": (writes & deal).astype(int)}
    table = pl.DataFrame(rows).with_columns(day=pl.col("shown").str.slice(0, 10))
    for name, part in table.group_by("day", maintain_order=True):
        part.drop("day").write_csv(folder / f"{name[0]}.csv")


WORLDS: dict[str, Callable[[Path, int], None]] = {
    "sports": sports,
    "groceries": groceries,
    "jobs": jobs,
    "music": music,
    "recipes": recipes,
    "market": market,
}
