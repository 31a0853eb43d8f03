"""Both stages on exported files, against the stages called one after the other by hand."""

import json
import shutil

import numpy as np
import polars as pl
import pytest
import tensorflow as tf

from multigate.candidates.evaluation import make_questions
from multigate.candidates.pairs import catalogue_of_splits, positive_task, read_pairs
from multigate.configs.contract import FrozenContract
from multigate.configs.errors import DataError, ModelError
from multigate.configs.files import SPLITS, TIME
from multigate.jobs.multistage import report
from multigate.jobs.show import show_multistage
from multigate.model.data.encoding import Encoder
from multigate.model.data.raw import raw_values
from multigate.pipeline.write import data_report

QUESTIONS = 25
N = 8


@pytest.fixture(scope="module")
def ranker(small_run):
    return next((small_run.root / "run").glob("models/*/*/saved_model.pb")).parent


@pytest.fixture(scope="module")
def measured(trained, ranker):
    return report(trained.version, ranker, trained.examples, retrieved=(N, 1000), limit=QUESTIONS)


def by_hand(trained, ranker):
    """Who asks, and places of the answer by both ways (None: not in the list), by question."""
    encoder = Encoder.read(trained.examples)
    contract = encoder.contract
    task = positive_task(trained.config)
    splits = [read_pairs(trained.examples, split, encoder, task) for split in SPLITS]
    items = catalogue_of_splits(trained.examples, encoder, SPLITS[:2])
    asked = make_questions(splits[:2], splits[2], items, "next_item", QUESTIONS)
    names = {side: [name for name, _ in contract.of_side(side)] for side in ("user", "item")}
    names["user"] += [name for name, _ in contract.of_side("context")]
    priors, crosses = encoder.statistics.priors, [*contract.crosses()]
    assert "user_topic_like_rate" in crosses
    without_labels = {name: priors[name] if "rate" in name else 0.0 for name in crosses}
    rows = pl.concat(
        pl.read_parquet(path).select(contract.user, *names["item"], TIME)
        for split in SPLITS[:2]
        for path in sorted((trained.examples / split).glob("*.parquet"))
    ).sort(TIME, maintain_order=True)
    first, second = tf.saved_model.load(str(trained.version)), tf.saved_model.load(str(ranker))
    weights = np.array([[task.score_weight for task in contract.tasks.values()]], np.float32)

    def row_of(user, item):
        """The item's latest row, with the rates of the user's latest row of its topic."""
        (found,) = rows.filter(pl.col(contract.item) == item).tail(1).to_dicts()
        of_topic = (pl.col(contract.user) == user) & (pl.col("topic") == found["topic"])
        known = rows.filter(of_topic).tail(1).select(crosses).to_dicts()
        kinds.add(bool(known))
        return found | (known[0] if known else without_labels)

    def places(user, candidates, answer):
        (user_id,) = user[contract.user].tolist()
        table = pl.DataFrame([row_of(user_id, item) for item in candidates], schema=rows.schema)
        raw = user | raw_values(contract, table.to_arrow(), names["item"])
        raw |= {"user_index": np.zeros(len(candidates), np.int32), "task_weights": weights}
        found = second.signatures["rank"](**{n: tf.constant(v) for n, v in raw.items()})["score"]
        order = np.argsort(-found.numpy(), kind="stable")
        best = [candidates[number] for number in order]
        return 1 + best.index(answer) if answer in best else None

    kinds = set()
    for number, row in enumerate(asked.rows):
        right = asked.answers[number].indices
        who = splits[2].users[row]
        if not len(right):
            yield who, None, None
            continue
        answer = items.ids[right[0]]
        seen = set(items.ids[asked.seen[number].indices])
        known = set(items.ids)
        user = raw_values(
            contract, splits[2].table[int(row) : int(row) + 1].to_arrow(), names["user"]
        )
        given = {name: tf.constant(value) for name, value in user.items()}
        found = first.signatures["retrieve"](**given, k=tf.constant(10_000))["items"].numpy()[0]
        found = [one.decode() if isinstance(one, bytes) else one for one in found.tolist()]
        kept = [item for item in found if item in known and item not in seen]
        everything = [item for item in items.ids if item not in seen]
        yield who, places(user, kept[:N], answer), places(user, everything, answer)
    assert kinds == {True, False}  # topics with rates of the user, and topics without


@pytest.mark.slow
def test_it_is_what_the_stages_give_by_hand(measured, trained, ranker):
    users, *both = zip(*by_hand(trained, ranker), strict=True)
    pairs = list(zip(*both, strict=True))
    assert len(pairs) == measured["questions"] == QUESTIONS
    gains = np.array(
        [[1 / np.log2(1 + p) if p and p <= 10 else 0.0 for p in pair] for pair in pairs]
    )
    found = measured["retrieved"][N]
    assert found["recall"] == pytest.approx(np.mean([bool(first) for first, _ in pairs]))
    assert 0 < found["recall"] < 1
    assert found["ndcg"] == pytest.approx(gains[:, 0].mean())
    assert measured["ndcg_all"] == pytest.approx(gains[:, 1].mean())
    loss = gains[:, 1] - gains[:, 0]
    assert found["loss"] == pytest.approx(loss.mean())
    gaps = [sum(loss[np.array(users) == user] - loss.mean()) for user in set(users)]
    assert 10 <= len(gaps) < QUESTIONS  # some ask twice
    spread = 1.96 * np.std(gaps, ddof=1) * np.sqrt(len(gaps)) / QUESTIONS
    assert found["interval"] == pytest.approx([loss.mean() - spread, loss.mean() + spread])


def test_retrieving_everything_loses_nothing(measured):
    found = measured["retrieved"][1000]
    assert found["ndcg"] == pytest.approx(measured["ndcg_all"])
    assert found["loss"] == 0
    assert found["recall"] == pytest.approx(1 - measured["unknown_answers"])


def test_one_question_has_no_interval(trained, ranker):
    found = report(trained.version, ranker, trained.examples, retrieved=(1,), limit=1)
    assert found["retrieved"][1]["interval"] is None
    show_multistage(found)


def test_a_split_without_questions_is_refused(trained, ranker, tmp_path):
    examples = tmp_path / "examples"
    shutil.copytree(trained.examples, examples)
    shutil.rmtree(examples / "test")
    shutil.copytree(examples / "train", examples / "test")
    with pytest.raises(DataError, match="the test split has no question: all its positives are"):
        report(trained.version, ranker, examples, limit=QUESTIONS)


@pytest.mark.slow
def test_models_of_different_contracts_are_refused(trained, ranker, tmp_path):
    other = tmp_path / "1"
    shutil.copytree(trained.version, other)
    path = other / "assets.extra" / "contract.json"
    contract = trained.config.contract
    fewer = {name: feature for name, feature in contract.features.items() if name != "age"}
    changed = contract.model_copy(update={"features": fewer})
    frozen = FrozenContract(
        contract=changed,
        schema_fingerprint=changed.schema_fingerprint(),
        data_fingerprint=FrozenContract.read(path).data_fingerprint,
    )
    path.write_text(frozen.model_dump_json())
    with pytest.raises(ModelError, match="schema: expected the same of both versions"):
        report(other, ranker, trained.examples)
    with pytest.raises(ModelError, match="expected a version with signature 'retrieve', received"):
        report(ranker, ranker, trained.examples)


def test_a_ranker_carries_the_reports_popular_items(trained, ranker):
    popular = json.loads((ranker / "assets.extra" / "popular.json").read_text())
    told = data_report.read(trained.examples)["popular"]
    assert popular["items"] == [one["item"] for one in told]
    assert popular["counts"] == [one["positives"] for one in told]
    assert len(popular["items"]) > 10
