"""What the soak judges: right answers, calls without Redis, and what is flat."""

import importlib
import math
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from multigate.serving.protos import ranking_pb2


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(
    ("places", "scores", "right"),
    [
        ([2, 0, 1], [3.0, 1.0, -20.0], True),
        ([2, 0, 1], [3.0002, 1.0, -20.0005], True),  # rounding
        ([2, 0, 1], [3.0, 1.001, -20.0], False),
        ([2, 0, 1], [3.0, 1.0, -20.01], False),
        ([0, 2, 1], [1.0, 3.0, -20.0], False),  # not best first
        ([2, 0], [3.0, 1.0], False),
        ([2, 0, 0], [3.0, 1.0, 1.0], False),
        ([2, 0, 1, 1], [3.0, 1.0, -20.0, -20.0], False),
    ],
)
def test_an_answer_is_right_with_each_score_once(module, places, scores, right):
    answer = ranking_pb2.RankResponse(item_index=places, score=scores)
    assert module("soak_expected").same({0: 1.0, 1: -20.0, 2: 3.0}, answer) is right


@pytest.fixture
def redis(module):
    """Hung from 10 to 13 s and from 20 s on; the grace is 3 s."""
    redis = module("soak_faults").HangingRedis.__new__(module("soak_faults").HangingRedis)
    redis._hangs = [[10.0, 13.0], [20.0, math.inf]]
    return redis


@pytest.mark.parametrize(
    ("began", "ended", "gone"),
    [
        (8.0, 9.9, False),
        (9.0, 10.1, True),
        (12.0, 12.1, True),
        (15.9, 17.0, True),
        (16.1, 19.9, False),
        (21.0, 99.0, True),
    ],
)
def test_calls_may_go_without_redis_while_it_hangs_and_shortly_after(redis, began, ended, gone):
    assert redis.gone(began, ended) is gone


def test_redis_is_used_again_each_time_that_it_answers(module, redis):
    soak = module("soak")
    assert redis.answering() == [(16.0, 20.0)]
    assert soak.idle_times(redis, [12.0, 17.0, 25.0]) == []
    assert soak.idle_times(redis, [12.0, 25.0]) == [
        "no call had features from Redis, which answered for 4.0 s"
    ]


@pytest.mark.parametrize(
    ("served", "answers", "late"),
    [
        ((7, 7), {0: 7, 1: 7}, False),
        ((7,), {0: 7, 1: 7}, True),  # a worker that starts
        ((7, 6), {0: 7, 1: 7}, True),
        ((7, 7), {0: 7, 1: 6}, True),  # an old version still answers
    ],
)
def test_all_workers_come_to_the_last_version(module, monkeypatch, served, answers, late):
    soak = module("soak")
    monkeypatch.setattr(
        soak,
        "metrics",
        lambda port: "\n".join(
            f'multigate_model_version{{model="benchmark",worker="{worker}"}} {version}.0'
            for worker, version in enumerate(served)
        ),
    )
    found = soak.behind(0, SimpleNamespace(versions=answers), 7, seconds=0)
    assert bool(found) is late
    if late:
        assert found[0].endswith("7 is there for 0 s")


def samples_of(flat, minutes, mebibytes):
    """A sample a second, with noise and a swap every 5 s; `mebibytes` is a function of minutes."""
    draw = random.Random(3)
    return [
        flat.Sample(
            seconds,
            40 + draw.randrange(3),
            30 + draw.randrange(5),
            mebibytes(seconds / 60) + draw.gauss(0, 5) + (100 if seconds % 5 == 0 else 0),
        )
        for seconds in range(round(60 * minutes))
    ]


@pytest.mark.parametrize(
    ("minutes", "mebibytes", "leaks"),
    [
        (30, lambda minute: 600, False),
        (30, lambda minute: 400 + 200 * min(minute, 2.5) / 2.5, False),  # grows in the warm-up
        (30, lambda minute: 600 + minute, True),  # 27 MiB, 4.5 %
        (30, lambda minute: 600 + 40 * (minute > 12), True),  # a step
        (2, lambda minute: 600 + minute, False),
        (2, lambda minute: 600 + 100 * minute, True),
    ],
)
def test_memory_is_flat_where_its_slope_is(module, minutes, mebibytes, leaks):
    flat = module("soak_flat")
    assert flat.leaks(flat.rise_of(samples_of(flat, minutes, mebibytes))) is leaks


def test_threads_and_descriptors_are_judged_likewise(module):
    flat = module("soak_flat")
    for kind in ("threads", "descriptors"):
        for more, leaks in ((0, False), (30, True)):
            found = [
                SimpleNamespace(
                    **{**vars(one), kind: getattr(one, kind) + more * one.seconds / 1800}
                )
                for one in samples_of(flat, 30, lambda minute: 600)
            ]
            assert flat.leaks(flat.rise_of(found)) is leaks


def test_minutes_are_told_by_least_median_and_most(module):
    flat = module("soak_flat")
    found = [flat.Sample(s, 10 + s // 60, 20, 100.0 + s) for s in range(90)]
    assert [one["mebibytes"] for one in flat.by_minute(found)] == [
        [100, 129.5, 159],
        [160, 174.5, 189],
    ]
    assert flat.table("worker", found)[1:] == [
        "  minute  1: 10/10/10  20/20/20  100/129.5/159",
        "  minute  2: 11/11/11  20/20/20  160/174.5/189",
    ]
