"""Many nights in a row, with a server that follows the folder and whose log they learn from.

Tastes drift from day to day. One day's log has half its events, another's comes a day late, and on
one day somebody breaks the configuration. What is published each night is known beforehand.
"""

import itertools
import threading
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
import pytest

from multigate.configs.errors import RunError
from multigate.jobs.night.nightly import run
from multigate.jobs.publication.base_folder import Base
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.serving.rpc.server import Server

FIRST = date(2026, 3, 1)
BEFORE = 4  # days that are logged before the first night
USERS, ITEMS, TASTES = 100, 60, 3
REQUESTS, CANDIDATES, SHOWN = 70, 20, 10  # a day; of a request
TURN = np.pi / 54  # by which tastes turn from one day to the next

RUN = {
    "full_retrain_days": 4,
    # Ranked lists are clicked more than the random ones of the first days.
    "guards": {"min_test_rows": 50, "max_label_change": 1.5},
}
# Some hundred users and test rows: smaller differences are chance.
RULES = {
    "largest_loss": 0.07,
    "largest_ranking_loss": 0.1,
    "calibration": None,
    "tasks": {"rating": {"largest_loss": 0.3}},
}


class Calendar(NamedTuple):
    """The nights, numbered from 1, and on which of them something is wrong."""

    nights: int
    halved: int
    late: int
    worse: int
    retrained: int
    """The first night after `full_retrain_days` that publishes."""


FIVE = Calendar(5, 2, 3, 4, 5)
FORTNIGHT = Calendar(14, 5, 8, 11, 4)


class World:
    """Users whose tastes turn, items that have a quality, and what happens when they meet."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        normal = self.random.normal
        self.start, self.end = normal(size=(2, USERS, TASTES))
        self.items = normal(0, 0.9, (ITEMS, TASTES))
        self.quality = normal(0, 0.9, ITEMS)
        self.country = self.random.integers(0, 3, USERS)
        self.length = self.random.integers(100, 2000, ITEMS)

    def probability(self, day: int, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """That the user clicks the item on a day, both (N,)."""
        turned = TURN * day
        taste = np.cos(turned) * self.start[user] + np.sin(turned) * self.end[user]
        z = -1.0 + self.quality[item] + (taste * self.items[item]).sum(axis=1)
        return 1 / (1 + np.exp(-z))

    def request(self) -> tuple[int, np.ndarray]:
        """Who asks, and for which candidates."""
        chosen = self.random.choice(ITEMS, CANDIDATES, replace=False)
        return int(self.random.integers(USERS)), chosen

    def feedback(self, day: int, user: int, shown: np.ndarray) -> dict[str, list]:
        """Clicks on what was shown, and ratings of some of what was clicked."""
        p = self.probability(day, np.full(len(shown), user), shown)
        click = self.random.random(len(shown)) < p
        rating = np.clip(np.rint(3 + 2 * (p - 0.3) + self.random.normal(0, 0.5, len(p))), 1, 5)
        rated = click & (self.random.random(len(shown)) < 0.5)
        return {
            "click": click.astype(int).tolist(),
            "rating": [int(r) if known else None for r, known in zip(rating, rated, strict=True)],
        }

    def user(self, user: int) -> dict[str, str]:
        return {"user_id": f"u{user}", "country": f"c{self.country[user]}"}

    def columns(self, items: np.ndarray) -> dict[str, list]:
        return {"length": self.length[items].astype(float).tolist()}


def instant(day: int, n: int) -> float:
    """Seconds since 1970 of a day's n-th request."""
    midnight = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC) + timedelta(days=day)
    return midnight.timestamp() + 86_000 * (n + 0.5) / REQUESTS


def random_day(world: World, day: int) -> pl.DataFrame:
    """A day before there is a model: candidates are shown as they come."""
    parts = []
    for n in range(REQUESTS):
        user, candidates = world.request()
        shown = candidates[:SHOWN]
        rows = {"time": instant(day, n), "request_id": f"d{day}-{n}", **world.user(user)}
        rows |= {"item_id": [f"i{i}" for i in shown]} | world.columns(shown)
        parts.append(pl.DataFrame(rows | world.feedback(day, user, shown)))
    return pl.concat(parts, how="vertical_relaxed")


@dataclass
class Online:
    """A server that follows the folder, its impression log, and a client that calls all along."""

    client: RankClient
    log: Path
    calls: int = 0
    failures: tuple[str, ...] = ()

    def rank(self, world: World, user: int, candidates: np.ndarray, request: str = "") -> list:
        ranked = self.client.rank(
            "night",
            user=world.user(user),
            item_ids=[f"i{i}" for i in candidates],
            columns=world.columns(candidates),
            limit=SHOWN,
            request_id=request,
        )
        self.version = ranked.model_version
        return [int(item["item_id"][1:]) for item in ranked]

    def call_until(self, stop: threading.Event, world: World) -> None:
        """Calls without a pause worth naming, through every swap."""
        while not stop.wait(0.02):
            self.calls += 1
            try:
                self.rank(world, self.calls % USERS, np.arange(CANDIDATES), f"probe-{self.calls}")
            except Exception as error:
                self.failures = (*self.failures, str(error))

    def wait_for(self, version: int, world: World) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.rank(world, 0, np.arange(CANDIDATES), "probe")
            if self.version == version:
                return
            time.sleep(0.05)
        pytest.fail(f"version {version} was not followed; {self.version} serves")

    def day(self, world: World, day: int) -> pl.DataFrame:
        """A day's requests, and its log: the server's impressions joined with the feedback."""
        feedback = []
        for n in range(REQUESTS):
            user, candidates = world.request()
            shown = np.array(self.rank(world, user, candidates, f"d{day}-{n}"))
            rows = {"time": instant(day, n), "ranked/request_id": f"d{day}-{n}"}
            rows |= {"item_id": [f"i{i}" for i in shown]}
            feedback.append(pl.DataFrame(rows | world.feedback(day, user, shown)))
        known = pl.concat(feedback, how="vertical_relaxed")
        deadline, joined = time.monotonic() + 60, known.clear()
        while time.monotonic() < deadline:
            files = sorted(self.log.glob("night/*.parquet"))
            if not files:  # the first one is not closed yet
                time.sleep(0.1)
                continue
            impressions = pl.read_parquet(files)
            joined = impressions.join(known, on=["ranked/request_id", "item_id"], how="inner")
            if len(joined) == len(known):
                wanted = ["time", "user_id", "country", "item_id", "length", "click", "rating"]
                return joined.select(pl.col("ranked/request_id").alias("request_id"), *wanted)
            time.sleep(0.1)
        pytest.fail(f"{len(known)} rows were ranked on day {day}, {len(joined)} are in the log")


def gain(world: World, online: Online, day: int) -> float:
    """True click probability of the first five of 20 candidates, over that of five at random."""
    chosen = np.random.default_rng(99)  # the same questions every day
    best, any_five = [], []
    for n in range(60):
        user, candidates = int(chosen.integers(USERS)), chosen.choice(ITEMS, CANDIDATES, False)
        first = np.array(online.rank(world, user, candidates, f"probe-gain-{n}")[:5])
        best.append(world.probability(day, np.full(5, user), first).mean())
        any_five.append(world.probability(day, np.full(CANDIDATES, user), candidates).mean())
    return float(np.mean(best) / np.mean(any_five))


def write(logs: Path, day: int, rows: pl.DataFrame) -> None:
    rows.sort("time", maintain_order=True).write_ndjson(logs / f"day-{day:02d}.jsonl")


@pytest.fixture
def configurations(nights):
    """The configuration, and the one that somebody broke: it learns nothing."""
    from multigate.configs.config import Config
    from multigate.configs.sections.base import parse

    values = nights.settings(**RUN) | {"evaluation": {"rules": RULES, "replicates": 50}}
    good = parse(Config, values, "fortnight.yaml")
    train = good.train.model_copy(update={"learning_rate": 1e-9, "epochs": 1})
    return good, good.model_copy(update={"train": train, "run": good.run.model_copy(
        update={"full_retrain_days": 1})})  # fmt: skip


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "calendar",
    [
        pytest.param(FIVE, id="five", marks=pytest.mark.slow),
        pytest.param(FORTNIGHT, id="fortnight", marks=pytest.mark.long),
    ],
)
def test_many_nights(calendar, configurations, tmp_path):
    good, broken = configurations
    world = World(4)
    logs, runs = tmp_path / "logs", tmp_path / "runs"
    logs.mkdir()
    base = Base(runs / "models/night")
    for day in range(BEFORE):
        write(logs, day, random_day(world, day))
    first = FIRST + timedelta(days=BEFORE - 1)
    assert run(good, first, logs, runs)["version"] == 1
    options = ServerOptions(
        model_name="night",
        model_base_path=base.root,
        port=0,
        file_system_poll_wait_seconds=0.1,
        impression_log=tmp_path / "impressions",
        impression_log_seconds=0.3,
    )
    server = Server(options)
    server.start()
    stop = threading.Event()
    published, gains, starts = {}, {}, {}
    with RankClient(f"127.0.0.1:{server.port}", timeout=60) as client:
        online = Online(client, options.impression_log)
        caller = threading.Thread(target=online.call_until, args=(stop, world))
        caller.start()
        try:
            for night in range(1, calendar.nights + 1):
                day = BEFORE - 1 + night
                online.wait_for(base.production(), world)
                gains[night] = gain(world, online, day)
                rows = online.day(world, day)
                if night == calendar.late:
                    late = rows
                else:
                    write(logs, day, rows[::2] if night == calendar.halved else rows)
                if night == calendar.late + 1:
                    write(logs, day - 1, late)
                config = broken if night == calendar.worse else good
                try:
                    result = run(config, FIRST + timedelta(days=day), logs, runs)
                except RunError as error:
                    published[night] = str(error).split(":")[0]
                else:
                    published[night] = result["version"] or "refused"
                    starts[night] = result["start"]
            # The late day's own night can be done now, and does not replace a later one's.
            missed = FIRST + timedelta(days=BEFORE - 1 + calendar.late)
            result = run(good, missed, logs, runs)
            assert (result["state"], result["production"]) == ("refused", base.production())
            # Back to the version before, without a restart.
            target = base.rollback_target()
            base.rollback()
            online.wait_for(target, world)
        finally:
            stop.set()
            caller.join()
            server.stop()
    assert online.failures == ()
    assert online.calls > 100
    print(gains, starts, online.calls)
    wrong = {
        calendar.halved: "guard max_row_drop",
        calendar.late: "guard max_delay",
        calendar.worse: "refused",
    }
    versions = itertools.count(2)
    assert published == {
        night: wrong.get(night) or next(versions) for night in range(1, calendar.nights + 1)
    }
    by_night = [gains[night] for night in sorted(gains)]
    early, last = np.mean(by_night[:3]), np.mean(by_night[-3:])
    assert min(gains.values()) > 1.1, gains
    assert last > 0.95 * early, gains
    assert starts[1] == "from version 1"
    assert starts[calendar.retrained].startswith("from scratch: the last time was ")
