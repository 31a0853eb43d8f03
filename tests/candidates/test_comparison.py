"""The verdict on a candidate version: recall as served, and the rules."""

import json

import pytest
import yaml

from multigate.candidates.comparison import compare
from multigate.candidates.evaluation import make_questions, next_item_questions, popularity, recall
from multigate.candidates.export import export
from multigate.candidates.exported import Exported
from multigate.candidates.pairs import catalogue_of_splits, read_pairs
from multigate.candidates.training import train
from multigate.configs.errors import ModelError
from multigate.configs.files import SPLITS
from multigate.configs.sections.candidates import CandidateRules
from multigate.jobs.multistage import report
from multigate.model.data.encoding import Encoder
from multigate.verbs.command import main


@pytest.fixture(scope="module")
def other(trained, tmp_path_factory):
    """A version of a model that learnt next to nothing."""
    root = tmp_path_factory.mktemp("other")
    options = trained.config.candidates.model_copy(
        update={"epochs": 1, "learning_rate": 1e-9, "seed": 1}
    )
    config = trained.config.model_copy(update={"candidates": options})
    train(config, trained.examples, root / "checkpoint", show=lambda line: None)
    return export(root / "checkpoint", trained.examples, root / "models")


def judged(trained, candidate, production, **rules):
    options = trained.config.candidates.model_copy(update={"rules": CandidateRules(**rules)})
    return compare(candidate, production, trained.examples, options)


@pytest.mark.slow
def test_recall_is_what_the_report_of_both_stages_finds(trained, other, small_run):
    ranker = next((small_run.root / "run").glob("models/*/*/saved_model.pb")).parent
    k = trained.config.candidates.recall_at
    found = judged(trained, trained.version, other, largest_below_popularity=1.0)
    for name, version in (("candidate", trained.version), ("production", other)):
        told = report(version, ranker, trained.examples, retrieved=(k,), limit=10_000)
        assert told["questions"] == found["questions"]
        assert found["recall"][name] == pytest.approx(told["retrieved"][k]["recall"])
    encoder = Encoder.read(trained.examples)
    _, _, asked = next_item_questions(trained.examples, encoder, found["positives"])
    assert found["recall"]["popularity"] == recall(popularity(asked), asked, (k,))[k]
    assert found["loss"] == pytest.approx(
        found["recall"]["production"] - found["recall"]["candidate"]
    )
    low, high = found["interval"]
    assert low < found["loss"] < high


@pytest.mark.slow
def test_the_rules_judge(trained, other):
    """Whichever of two hasty models is the better one on these few questions."""
    rules = {"largest_loss": 0, "largest_below_popularity": 1.0}
    versions = (trained.version, other)
    found = [judged(trained, *pair, **rules) for pair in (versions, versions[::-1])]
    better, worse = sorted(found, key=lambda one: one["loss"])
    assert better["loss"] == pytest.approx(-worse["loss"])
    assert better["loss"] < 0
    assert (better["verdict"], better["reasons"]) == ("bless", [])
    ours, theirs = (worse["recall"][name] for name in ("candidate", "production"))
    assert worse["verdict"] == "refuse"
    assert worse["reasons"] == [
        f"recall@20 of {ours:.4f} is {theirs - ours:.4f} below that of production, {theirs:.4f}; "
        "the limit is 0 (candidates.rules.largest_loss)"
    ]
    first = judged(trained, other, None, largest_loss=0)
    assert first["recall"]["production"] is first["loss"] is first["interval"] is None
    assert ["most popular items, " in reason for reason in first["reasons"]] == [True]


@pytest.mark.slow
def test_versions_that_cannot_be_judged(trained, small_run, tmp_path):
    with pytest.raises(ModelError, match="expected an exported version"):
        judged(trained, tmp_path, None)
    ranker = next((small_run.root / "run").glob("models/*/*/saved_model.pb")).parent
    with pytest.raises(ModelError, match="expected a version with signature 'retrieve', received"):
        judged(trained, ranker, None)


@pytest.mark.slow
def test_the_verb_says_by_its_status(trained, other, tmp_path, capsys):
    command = ["candidates", "--json", "compare", "--candidate", str(other)]
    command += ["--production", str(trained.version), "--examples", str(trained.examples)]
    strict = tmp_path / "strict.yaml"
    section = {"recall_at": 1, "rules": {"largest_below_popularity": 0.0}}
    values = trained.config.model_dump(mode="json") | {"candidates": section}
    strict.write_text(yaml.safe_dump(values))
    assert main([*command, "--config", str(strict)]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "refuse"
    assert "refused" in printed.err


@pytest.mark.slow
def test_an_answer_holds_no_item_that_the_earlier_splits_do_not_name(trained):
    encoder = Encoder.read(trained.examples)
    version = Exported(trained.version)
    task = version.positives()
    splits = [read_pairs(trained.examples, split, encoder, task) for split in SPLITS]
    items = catalogue_of_splits(trained.examples, encoder, SPLITS[:1])
    asked = make_questions(splits[:1], splits[1], items, "next_item", 20)
    rows = list(version.retrieved(encoder.contract, splits[1], asked, items, 5))
    assert [row for row, _, _ in rows] == list(range(20))
    for row, _, found in rows:
        assert len(set(found)) == len(found)
        assert set(found) <= set(range(len(items)))
        assert len(found[~asked.seen[row].toarray()[0].astype(bool)[found]]) >= 5
