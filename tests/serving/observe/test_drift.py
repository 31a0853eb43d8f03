"""What a sample of the calls looks like, beside the test split that the version recorded."""

import copy
import json
import logging
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.layout import SCORE
from multigate.serving.core.metrics import ServerMetrics
from multigate.serving.core.options import ServerOptions
from multigate.serving.observe import drift
from multigate.serving.observe.drift import _LEAST_CALLS, DriftMonitor
from multigate.serving.versions.reference import Histogram, Reference, stability_index

ITEMS = [f"i{n}" for n in range(1, 41)]  # the small model knows i0 to i49


def reference_of(outputs, **shares):
    """A test split with these scores, and these shares for some features."""
    features = {
        name: {"missing": 0.0, "unseen": None}
        for name in ("user_id", "country", "age", "segment", "recent", "topic", "length", "tags")
    }
    features["item_id"] = {"missing": 0.0, "unseen": 0.0}
    for name, share in shares.items():
        features[name] = features[name] | share
    scores = {}
    for task, values in outputs.items():
        edges = np.linspace(min(values) - 1e-6, max(values) + 1e-6, 21)
        scores[task] = {
            "edges": edges.tolist(),
            "counts": np.histogram(values, edges)[0].tolist(),
        }
    return {"rows": 1000, "features": features, "scores": scores}


def rank(client, items=ITEMS, number=0, **user):
    features = {"user_id": f"u{number}", "country": "BR", "age": 30.0, "segment": 1}
    features["recent"] = ["i1", "i2"]
    return client.rank(
        "small",
        user=features | user,
        context={"hour": 9},
        item_ids=items,
        columns={
            "topic": ["news"] * len(items),
            "length": [1.0] * len(items),
            "tags": [["a", "b"]] * len(items),
        },
    )


@pytest.fixture
def serve(tmp_path, watched, run_server, monkeypatch):
    """A server of that version with this reference, with windows that are too short."""
    monkeypatch.setattr("multigate.serving.observe.drift._LEAST_CALLS", 30)

    def start(reference, **options):
        base = tmp_path / "models"
        base.mkdir()
        target = base / "1"
        for path in watched.rglob("*"):
            if path.is_file():
                copy = target / path.relative_to(watched)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        if reference is not None:
            (target / "assets.extra/reference.json").write_text(json.dumps(reference))
        (target / "assets.extra/sparsity.json").write_text('{"experts_per_row": 2.5}')
        return run_server(base, watch_rate=1.0, watch_seconds=0.0, **options)

    return start


@pytest.fixture(scope="module")
def usual(watched, run_server):
    """Scores by task of 30 users' calls."""
    with (
        run_server(watched.parent) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        rankings = [rank(client, number=number) for number in range(30)]
    return {
        task: [item["tasks"][task] for ranking in rankings for item in ranking]
        for task in ("click", "like", "rating")
    }


def value(running, name, **labels):
    return running.metric(f"multigate_{name}", model="small", **labels)


def watched_calls(running):
    return value(running, "watched_calls_total", result="watched")


def test_traffic_as_in_the_test_split_raises_nothing(serve, usual, until, caplog):
    with (
        serve(reference_of(usual)) as running,
        RankClient(running.target, timeout=120) as client,
        caplog.at_level(logging.WARNING, "multigate.serving"),
    ):
        for number in range(30):
            rank(client, number=number)
        until(lambda: watched_calls(running) == 30)
        for task in ("click", "like", "rating"):
            psi = value(running, "score_stability_index", task=task)
            assert psi == pytest.approx(0, abs=1e-9)
        assert value(running, "share_shift", feature="item_id", what="unseen") == 0
        assert value(running, "share_shift", feature="age", what="missing") == 0
        assert value(running, "share_shift", feature="age", what="unseen") is None
        assert value(running, "experts_per_row") == 2.5
        assert value(running, "score_count", task="click") == 30 * len(ITEMS)
        ids = "watched_ids_total"
        assert value(running, ids, feature="item_id", result="seen") == 30 * len(ITEMS)
        assert value(running, ids, feature="recent", result="seen") == 30 * 2
        experts = "watched_experts_per_row"
        assert value(running, f"{experts}_bucket", le="2") == 30 * 9  # i1 to i9
        assert value(running, f"{experts}_sum") == 30 * (9 * 2 + 31 * 3)
    assert not [record for record in caplog.records if "test split" in record.message]


def test_traffic_that_parts_from_the_test_split_is_told_once(
    serve, usual, until, caplog, monkeypatch
):
    monkeypatch.setattr(drift, "_TOGETHER", 1)  # each window has the calls of all 30 users
    items = [*ITEMS[:30], *(f"new{n}" for n in range(10))]
    with (
        serve(reference_of(usual, recent={"unseen": 0.5})) as running,
        RankClient(running.target, timeout=120) as client,
        caplog.at_level(logging.WARNING, "multigate.serving"),
    ):
        for number in range(90):
            rank(client, items, number % 30, age=None, recent=["i1", "new", "new", "new"])
            # No more wait than the queue holds, however slow the thread that looks at them.
            until(lambda due=number - 30: (watched_calls(running) or 0) >= due)
        until(lambda: watched_calls(running) == 90)
        assert value(running, "share_shift", feature="item_id", what="unseen") == 0.25
        assert value(running, "share_shift", feature="recent", what="unseen") == 0.25
        assert value(running, "share_shift", feature="age", what="missing") == 1
        assert value(running, "share_shift", feature="country", what="missing") == 0
    (record,) = [record for record in caplog.records if "test split" in record.message]
    assert "30 calls with 1200 candidates" in record.message
    assert "feature 'age': missing 1.000, was 0.000" in record.message
    assert "feature 'item_id': unseen 0.250, was 0.000" in record.message
    assert "task 'click': stability index of scores" in record.message
    assert "country" not in record.message


@pytest.mark.parametrize("reference", [None, {"features": {}}], ids=["absent", "damaged"])
def test_versions_that_recorded_nothing_serve_as_well(serve, reference, until, caplog):
    with serve(reference) as running, RankClient(running.target, timeout=120) as client:
        for number in range(31):
            rank(client, number=number)
        until(lambda: watched_calls(running) == 31)
        assert "multigate_score_stability_index{" not in running.server.metrics.text()
    assert ("drift is not measured" in caplog.text) == (reference is not None)


@pytest.fixture
def some_calls(serve, usual, monkeypatch):
    """Version, inputs and outputs of 32 calls that differ in user, lists and candidates."""
    found = []
    add = DriftMonitor.add
    monkeypatch.setattr(DriftMonitor, "add", lambda self, *call: found.append(call))
    with (
        serve(reference_of(usual, recent={"unseen": 0.5})) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        for number in range(32):
            items = ITEMS if number % 3 else [*ITEMS[:17], "new"]
            recent = ["i1", "new", f"i{number}"][: number % 4]
            rank(client, items, number, age=None if number % 5 == 0 else 30.0, recent=recent)
        monkeypatch.setattr(DriftMonitor, "add", add)
        yield found


def watch(calls):
    """The metrics of a monitor that saw these calls."""
    metrics = ServerMetrics()
    options = ServerOptions(
        model_name="small", model_base_path=Path("models"), watch_rate=1.0, watch_seconds=0.0
    )
    monitor = DriftMonitor(options, metrics)
    for call in calls:
        monitor.add(*call)
    monitor.close()
    lines = [line for line in metrics.text().splitlines() if 'model="small"' in line]
    return {name: float(number) for name, number in (line.rsplit(" ", 1) for line in lines)}


def test_calls_are_counted_together_as_each_alone(some_calls, monkeypatch):
    monkeypatch.setattr(drift, "_LEAST_CALLS", len(some_calls))
    runs = []
    join = drift.join_calls
    monkeypatch.setattr(
        drift, "join_calls", lambda calls, how: runs.append(calls) or join(calls, how)
    )
    monkeypatch.setattr(drift, "_GATHER_SECONDS", 60.0)
    together = watch(some_calls)
    assert max(len(calls) for calls in runs) >= 10
    runs.clear()
    monkeypatch.setattr(drift, "_TOGETHER", 1)
    assert watch(some_calls) == pytest.approx(together, rel=1e-6)
    assert runs == []
    assert together['multigate_watched_calls_total{model="small",result="watched"}'] == 32
    candidates = np.array([40 if number % 3 else 18 for number in range(32)])
    shift = together['multigate_share_shift{feature="recent",model="small",what="missing"}']
    assert shift == pytest.approx(candidates[::4].sum() / candidates.sum())


def test_a_call_that_cannot_be_counted_takes_no_other_with_it(some_calls, monkeypatch, caplog):
    monkeypatch.setattr(drift, "_GATHER_SECONDS", 60.0)
    ranker, inputs, outputs = some_calls[3]
    some_calls[3] = ranker, {k: v for k, v in inputs.items() if k != "recent__length"}, outputs
    told = watch(some_calls)
    assert told['multigate_watched_calls_total{model="small",result="failed"}'] == 1
    assert told['multigate_watched_calls_total{model="small",result="watched"}'] == 31
    assert "1 sampled calls cannot be processed" in caplog.text


def test_calls_of_versions_that_have_gone_are_watched_beside_others(some_calls, monkeypatch):
    monkeypatch.setattr(drift, "_GATHER_SECONDS", 60.0)
    gone = copy.copy(some_calls[0][0])
    gone.saved_model = copy.copy(gone.saved_model)
    gone.saved_model._closed = lambda: None  # retired: takes no more runs
    assert not gone.saved_model.acquire()
    told = watch(
        [(gone, *call[1:]) if number % 2 else call for number, call in enumerate(some_calls)]
    )
    assert told['multigate_watched_calls_total{model="small",result="watched"}'] == 32
    scores = sum(len(outputs[SCORE]) for _, _, outputs in some_calls)
    assert told['multigate_score_count{model="small",task="click"}'] == scores
    seen, unseen = (
        told[f'multigate_watched_ids_total{{feature="item_id",model="small",result="{result}"}}']
        for result in ("seen", "unseen")
    )
    assert seen + unseen == sum(len(outputs[SCORE]) for _, _, outputs in some_calls[::2])


def test_what_is_too_much_is_dropped_and_counted(serve, usual, until, monkeypatch):
    monkeypatch.setattr("multigate.serving.observe.drift._QUEUED", 0)
    with serve(None) as running, RankClient(running.target, timeout=120) as client:
        rank(client)
        assert value(running, "watched_calls_total", result="dropped") == 1


def test_a_version_that_counts_nothing_is_watched_without(tmp_path, publish, run_server, until):
    publish(tmp_path, 1)
    (tmp_path / "1/assets.extra/sparsity.json").write_text('{"experts_per_row": 2.5}')
    with (
        run_server(tmp_path, watch_rate=1.0) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        rank(client)
        until(lambda: watched_calls(running) == 1)
        assert value(running, "experts_per_row") == 2.5
        text = running.server.metrics.text()
        assert "multigate_watched_experts_per_row_sum{" not in text
        assert "multigate_watched_ids_total{" not in text


def test_nothing_is_watched_without_a_rate(tmp_path, publish, run_server):
    publish(tmp_path, 1)
    with (
        run_server(tmp_path, watch_rate=0.0) as running,
        RankClient(running.target, timeout=120) as client,
    ):
        rank(client)
        assert "multigate_watched_calls_total{" not in running.server.metrics.text()


def test_the_stability_index_is_the_definitions():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    expected = 2 * 0.3 * np.log(0.5 / 0.2)
    many = 10**9
    assert stability_index(p * many, q * many) == pytest.approx(expected, rel=1e-6)
    assert stability_index(p * many, p * 100) == pytest.approx(0, abs=1e-3)
    assert np.isfinite(stability_index(np.array([10, 0]), np.array([0, 10])))


def test_chance_alone_is_no_alarm():
    rng = np.random.default_rng(0)
    options = ServerOptions(model_name="small", model_base_path=Path("models"))
    expected = rng.integers(50, 5000, 20)
    windows, calls = 1000, _LEAST_CALLS
    # At the worst all 40 candidates of a call score alike, and share what their user lacks.
    counts = 40 * rng.multinomial(calls, expected / expected.sum(), windows)
    found = np.array([stability_index(expected, received) for received in counts])
    assert found.max() < options.watch_psi
    missing = rng.binomial(calls, 0.5, windows) / calls
    assert np.mean(np.abs(missing - 0.5) > options.watch_share) < 0.002


def test_the_outermost_bins_take_what_lies_beyond(tmp_path):
    edges = np.linspace(0, 1, 21).tolist()
    said = {"features": {}, "scores": {"t": {"edges": edges, "counts": [1] * 20}}}
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra/reference.json").write_text(json.dumps(said))
    histogram = Reference.read(tmp_path).scores["t"]
    assert isinstance(histogram, Histogram)
    counts = histogram.count(np.array([-5.0, 0.01, 0.5, 0.97, 9.0], np.float32))
    assert (counts[0], counts[10], counts[19], counts.sum()) == (2, 1, 2, 5)


class Gone:
    """A version without features and tasks."""

    model, reference = "m", None
    contract = SimpleNamespace(of_side=lambda *sides: [], tasks={})

    def __init__(self, number):
        self.number = number

    def signature(self, name):
        return None


def test_versions_that_are_gone_are_not_kept(tmp_path, until):
    """The thread held the last one, and its mapped files, until another call came."""
    monitor = DriftMonitor(
        ServerOptions(model_name="m", model_base_path=tmp_path, watch_rate=1.0), ServerMetrics()
    )
    for number in range(32):
        version = Gone(number)
        monitor.add(version, {}, {SCORE: np.zeros(1)})
        gone = weakref.ref(version)
        del version
        until(lambda gone=gone: gone() is None, "the end of the version")
    monitor.close()
    assert not monitor._windows


def test_a_window_has_the_calls_of_one_version_alone(some_calls, monkeypatch):
    """A reload may bring another model under the same name and number."""
    monkeypatch.setattr(drift, "_LEAST_CALLS", len(some_calls))
    first = some_calls[0][0]
    other = copy.copy(first)
    other.reference = copy.deepcopy(first.reference)
    for histogram in other.reference.scores.values():  # of other scores, in fewer bins
        object.__setattr__(histogram, "inner", histogram.inner[:9] + 7.0)
        object.__setattr__(histogram, "counts", histogram.counts[:10])
    of_other = [(other, *call[1:]) for call in some_calls]
    told, alone = watch(some_calls[:20] + of_other), watch(of_other)
    assert told['multigate_watched_calls_total{model="small",result="watched"}'] == 20 + 32
    shifts = {name for name in told if name.startswith(("multigate_share", "multigate_score_st"))}
    assert shifts
    assert {name: told[name] for name in shifts} == {name: alone[name] for name in shifts}


def test_every_model_has_its_window(some_calls, monkeypatch):
    """Of more than sixteen, none had one for long enough to be compared."""
    monkeypatch.setattr(drift, "_LEAST_CALLS", 3)
    monkeypatch.setattr(drift, "_LEAST_ROWS", 3)
    first = some_calls[0][0]
    rankers = [copy.copy(first) for _ in range(20)]
    for number, ranker in enumerate(rankers):
        ranker.model = f"m{number}"
    metrics = ServerMetrics()
    options = ServerOptions(
        model_name="m", model_base_path=Path("models"), watch_rate=1.0, watch_seconds=0.0
    )
    monitor = DriftMonitor(options, metrics)
    for call in some_calls[:3]:
        for ranker in rankers:
            monitor.add(ranker, *call[1:])
    monitor.close()
    name, labels = "multigate_score_stability_index", {"task": "click"}
    found = [
        metrics.registry.get_sample_value(name, labels | {"model": ranker.model})
        for ranker in rankers
    ]
    assert None not in found
