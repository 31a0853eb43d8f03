"""The verdict on a version on trial, from logs of simulated users whose truth is known."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest
import yaml

from multigate.configs import load
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import DataError, RunError
from multigate.configs.sections.base import parse
from multigate.configs.version_folders import Trial
from multigate.jobs.publication import trial as trials
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.trial.judge import judge
from multigate.serving.observe.side import sampled, side_of
from multigate.serving.protos import ranking_pb2
from multigate.serving.versions.folders import missing_files
from multigate.verbs.command import main

CONTRACT = {
    "user": "user_id",
    "item": "item_id",
    "features": {
        "user_id": {"kind": "id", "side": "user", "column": "who"},
        "item_id": {"kind": "id", "side": "item", "dtype": "int"},
    },
    "tasks": {
        "click": {
            "group": "engagement",
            "type": "binary",
            "label": {"rule": "column", "column": "click"},
            "score_weight": 1,
        },
        "hide": {
            "group": "satisfaction",
            "type": "binary",
            "label": {"rule": "column", "column": "hide"},
            "score_weight": -1,
        },
    },
}
PERCENT, SHADOW, SHOWN, OFFERED = 30.0, 40.0, 4, 12
NOW = timedelta(0)


def write_contract(folder, values):
    contract = parse(Contract, values, "test")
    frozen = FrozenContract(
        contract=contract,
        schema_fingerprint=contract.schema_fingerprint(),
        data_fingerprint="0" * 16,
    )
    (folder / "contract.json").write_text(frozen.model_dump_json())


@pytest.fixture
def base(tmp_path):
    """Version 1 in production, version 2 on trial."""
    base = Base(tmp_path / "models/shop")
    for number in (1, 2):
        folder = base.root / str(number)
        for name in missing_files(folder):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")
        write_contract(folder / "assets.extra", CONTRACT)
    trials.begin(base, 2, PERCENT, SHADOW)
    return base


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


class World:
    """Users who click what they like; versions that know it well or badly."""

    def __init__(self, tmp_path, skill, users=1500, seed=0, fallback=0.0, lost=0.0, gone=0.0):
        """Log four calls of each user.

        Args:
            skill: of the version on trial: 1 as production, -1 the reverse of it.
            fallback: share of the canary's calls that production answers.
            lost: share of the shadow's calls without rows.
            gone: share of the canary's users whose rows are lost.
        """
        self.log, self.examples = tmp_path / "log/shop", tmp_path / "examples"
        random = np.random.default_rng(seed)
        trial, shown, both, labels = Trial(2, PERCENT, SHADOW), [], [], []
        now = datetime.now(UTC)
        for user in range(users):
            side = side_of(trial, ranking_pb2.Value(text=f"u{user}"), "")
            canary = side.group == "canary"
            if canary and random.random() < gone:
                continue
            eager = random.normal(0, 0.5)
            for number in range(4):
                request = f"u{user}-{number}"
                truth = eager + random.normal(-1.5, 1, OFFERED)
                known = truth + random.normal(0, 0.5, OFFERED)
                score = {1: known, 2: -1.5 + skill * (known + 1.5)}
                answers = 2 if canary and random.random() >= fallback else 1
                order = np.argsort(-score[answers], kind="stable")[:SHOWN]
                due = sampled(request, SHADOW / 100)
                click = random.random(OFFERED) < sigmoid(truth)
                row = {
                    "ranked/time": now,
                    "ranked/request_id": request,
                    "who": f"u{user}",
                    "ranked/model_version": answers,
                    "ranked/trial": 2,
                    "ranked/canary": PERCENT,
                }
                kept = due and random.random() >= lost
                for item in order.tolist():
                    own = score[answers][item]
                    scores = {
                        "item_id": 1000 + item,
                        "ranked/score/click": sigmoid(own),
                        "ranked/score/hide": 0.1,
                    }
                    shown.append(row | scores | {"ranked/group": side.group, "ranked/shadow": due})
                    if kept:
                        other = sigmoid(score[3 - answers][item])
                        both.append(
                            row
                            | scores
                            | {
                                "ranked/score": sigmoid(own),
                                "shadow/score": other,
                                "shadow/score/click": other,
                                "shadow/score/hide": 0.1,
                                "shadow/pairs": 1.0 if skill > 0 else 0.0,
                                "shadow/overlap": 1.0 if skill > 0 else 0.25,
                            }
                        )
                    labels.append(
                        {
                            "meta/request": request,
                            "item_id": 1000 + item,
                            "label/click": float(click[item]),
                            "label/hide": float(random.random() < 0.1),
                            "meta/sampled": False,
                        }
                    )
        (self.log / "shadow").mkdir(parents=True)
        pl.DataFrame(shown).write_parquet(self.log / "impressions-1.parquet")
        pl.DataFrame(both).write_parquet(self.log / "shadow/shadow-1.parquet")
        self.labels = pl.DataFrame(labels)
        for split, part in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
            (self.examples / split).mkdir(parents=True)
            rows = self.labels.sample(fraction=part, seed=1) if part < 0.2 else self.labels
            rows.write_parquet(self.examples / split / "part.parquet")
        write_contract(self.examples, CONTRACT)
        self.keep_negatives(1.0)

    def keep_negatives(self, share):
        statistics = {"features": {}, "tasks": {}, "rows": {}, "negatives_kept": share}
        (self.examples / "statistics.json").write_text(json.dumps(statistics))


def guards(found):
    return {one["guard"] for one in found["objections"]}


@pytest.fixture
def alike(tmp_path):
    return World(tmp_path, skill=1.0, users=150)


def test_an_equal_version_is_blessed_and_promoted(base, tmp_path):
    alike = World(tmp_path, skill=1.0, users=1500)
    found = judge(base, [alike.log], alike.examples, settle=NOW)
    canary, shadow = found["canary"], found["shadow"]
    assert found["verdict"] == "wait"  # hides are rare: a loss of 5 % cannot be told
    assert guards(found) == {"users"}
    assert abs(canary["share"] - 0.3) < 0.04
    assert canary["chance"] > 0.001
    assert canary["fallbacks"] == 0
    assert canary["items_per_user"]["candidate"]["value"] == 16
    shown, n = pl.read_parquet(alike.log / "impressions-1.parquet"), alike.labels
    joined = shown.join(
        n, left_on=["ranked/request_id", "item_id"], right_on=["meta/request", "item_id"]
    )
    rates = dict(joined.group_by("ranked/group").agg(pl.col("label/click").mean()).iter_rows())
    label = canary["tasks"]["click"]["label"]
    assert label["candidate"]["value"] == pytest.approx(rates["canary"])
    assert label["production"]["value"] == pytest.approx(rates["stable"])
    assert label["difference"]["value"] == pytest.approx(rates["canary"] / rates["stable"] - 1)
    assert label["difference"]["low"] < 0 < label["difference"]["high"]
    assert (shadow["lost"], shadow["pairs"]["value"], shadow["overlap"]["value"]) == (0, 1, 1)
    assert shadow["chosen_by"]["stable"]["tasks"]["click"]["difference"]["value"] == 0
    assert shadow["chosen_by"]["stable"]["ranking"]["difference"]["value"] == 0
    # With rules that its numbers of users can answer, it is safe.
    assert main(verdict_command(base, alike, "--config", relaxed(base, 0.5))) == 0
    assert trials.promote(base) == 2
    assert (base.production(), base.tried()) == (2, {})
    assert base.history()[-1]["reason"] == "trial"


def relaxed(base, loss):
    """A configuration with another bound of outcomes."""
    path = base.root.parent / "rules.yaml"
    values = load("demo").model_dump(mode="json", exclude_unset=True)
    values["evaluation"] = {"rules": {"largest_outcome_loss": loss}}
    path.write_text(yaml.safe_dump(values))
    return str(path)


def verdict_command(base, world, *more):
    logs = ("--log", str(world.log), "--settle", "0")
    return ["trial", "--base", str(base.root), *logs, "--examples", str(world.examples), *more]


def test_reversed_scores_are_refused_by_their_outcomes(base, tmp_path, capsys):
    world = World(tmp_path, skill=-1.0, users=400)
    assert main(verdict_command(base, world, "--json")) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["version"], found["against"]) == ("refuse", 2, 1)
    assert main(verdict_command(base, world, "--stop")) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "click: rate of the label per item shown is worse beyond chance: -" in printed
    assert "version 2 is refused and withdrawn" in printed
    assert (base.tried(), list(base.withdrawn()), base.production()) == ({}, [2], 1)
    assert base.history()[-1]["reason"].startswith("trial: click: rate of the label")


def test_the_measures_on_the_same_rows_say_who_chose_them(base, tmp_path):
    """Each version's AUC is worse on rows that it chose itself: the reason for `chosen_by`."""
    world = World(tmp_path, skill=0.0, users=500)  # knows nothing; scores all alike
    found = judge(base, [world.log], world.examples, settle=NOW)
    by = found["shadow"]["chosen_by"]
    areas = {who: rows["tasks"]["click"]["production"]["value"] for who, rows in by.items()}
    assert areas["stable"] < areas["canary"] - 0.02
    assert (found["verdict"], "loss" in guards(found)) == ("refuse", True)


def test_a_shadow_alone_refuses_but_blesses_nothing(base, tmp_path, alike):
    trials.begin(base, None, 0, None)

    def without_canary(world):
        for path in (world.log / "impressions-1.parquet", world.log / "shadow/shadow-1.parquet"):
            rows = pl.read_parquet(path).filter(pl.col("ranked/model_version") == 1)
            rows = rows.with_columns(pl.lit(0.0).alias("ranked/canary"))
            rows.write_parquet(path)

    without_canary(alike)
    found = judge(base, [alike.log], alike.examples, settle=NOW)
    assert (found["verdict"], guards(found), found["canary"]) == ("wait", {"users"}, None)
    assert "no users beside" in found["objections"][0]["reason"]
    bad = World(tmp_path / "bad", skill=-1.0, users=400)
    without_canary(bad)
    found = judge(base, [bad.log], bad.examples, settle=NOW)
    assert found["verdict"] == "refuse"
    assert "AUC on the rows that production chose" in found["objections"][0]["reason"]


@pytest.mark.parametrize(
    ("fault", "guard"),
    [
        ({"gone": 0.5}, "sample_ratio"),
        ({"fallback": 0.05}, "fallbacks"),
        ({"lost": 0.05}, "lost_records"),
    ],
)
def test_a_comparison_with_a_fault_blesses_nothing(base, tmp_path, fault, guard):
    world = World(tmp_path, skill=1.0, users=400, **fault)
    found = judge(base, [world.log], world.examples, settle=NOW)
    assert guard in guards(found)
    assert found["verdict"] == "wait"


def test_a_shadow_log_that_is_gone_is_noticed(base, alike):
    (alike.log / "shadow/shadow-1.parquet").unlink()
    found = judge(base, [alike.log], alike.examples, settle=NOW)
    assert found["shadow"]["lost"] == 1
    assert "lost_records" in guards(found)


def test_labels_of_an_item_may_stand_in_the_rows_of_two_days(base, alike):
    """As in days that are read as one folder: a hide is known a day after a click."""
    expected = judge(base, [alike.log], alike.examples, settle=NOW)["canary"]["tasks"]
    for split in ("train", "validation", "test"):
        path = alike.examples / split / "part.parquet"
        rows = pl.read_parquet(path)
        halves = [rows.with_columns(pl.lit(None, float).alias(n)) for n in rows.columns[2:4]]
        pl.concat(halves).write_parquet(path)
    assert judge(base, [alike.log], alike.examples, settle=NOW)["canary"]["tasks"] == expected


def test_without_feedback_nothing_is_blessed(base, alike, capsys):
    found = judge(base, [alike.log], None, settle=NOW)
    assert (found["verdict"], guards(found)) == ("wait", {"feedback"})
    promote = ["publish", "--base", str(base.root), "--promote"]
    assert main(promote) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {base.root}: version 2 is not shown to be safe: no label")
    assert line.endswith("(--accept feedback promotes it all the same)")
    assert main([*promote, "--accept", "feedback"]) == 0
    assert base.production() == 2
    assert base.history()[-1]["reason"] == "trial, accepted: feedback"


def test_a_promotion_that_is_refused_names_all_objections(base, tmp_path, capsys):
    """Whoever accepts one of them knows what else objects."""
    world = World(tmp_path, skill=1.0, users=400, lost=0.05)
    judge(base, [world.log], None, settle=NOW)
    promote = ["publish", "--base", str(base.root), "--promote"]
    assert main(promote) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no label is known of what was shown" in line
    assert "are not in the shadow log" in line
    both = "--accept feedback --accept lost_records"
    assert line.endswith(f"({both} promotes it all the same)")
    assert main([*promote, "--accept", "feedback"]) == 2
    assert "--accept feedback" not in capsys.readouterr().err
    assert main([*promote, *both.split()]) == 0
    assert base.production() == 2


@pytest.mark.parametrize(
    ("rule", "logged"), [({"missing": "default", "default": "none"}, "none"), ({}, None)]
)
def test_calls_without_a_user_are_users_of_their_own(base, alike, rule, logged):
    """As they are in the split; the log has the contract's default in the place of their user."""
    features = CONTRACT["features"] | {"user_id": CONTRACT["features"]["user_id"] | rule}
    write_contract(base.root / ".trial/2/assets.extra", CONTRACT | {"features": features})
    for log in alike.log.rglob("*.parquet"):
        rows = pl.read_parquet(log)
        rows.with_columns(pl.lit(logged, pl.String).alias("who")).write_parquet(log)
    canary = judge(base, [alike.log], alike.examples, settle=NOW)["canary"]
    assert canary["users"] == canary["calls"]
    assert sum(canary["calls"].values()) == 600
    assert canary["tasks"]["click"]["label"]["difference"]["error"] > 0


def test_only_rows_of_the_present_percentage_count(base, alike):
    trials.begin(base, None, 31.0, None)
    with pytest.raises(DataError, match=r"no impressions of the trial of version 2 with a canary"):
        judge(base, [alike.log], alike.examples, settle=NOW)
    trials.begin(base, None, PERCENT, None)
    with pytest.raises(DataError, match="older than --settle"):
        judge(base, [alike.log], alike.examples, settle=timedelta(hours=1))


def test_rows_from_before_the_present_production_do_not_count(base, alike):
    path = alike.log / "impressions-1.parquet"
    rows = pl.read_parquet(path)
    before = rows.with_columns(
        pl.col("ranked/time") - pl.duration(hours=1),
        ("old-" + pl.col("ranked/request_id")).alias("ranked/request_id"),
        pl.col("ranked/model_version").replace(1, 0),
    )
    before.write_parquet(alike.log / "impressions-0.parquet")
    found = judge(base, [alike.log], alike.examples, settle=NOW)
    assert (found["impressions"], found["canary"]["fallbacks"]) == (len(rows), 0)


def test_examples_without_all_negatives_are_refused(base, alike):
    alike.keep_negatives(0.25)
    with pytest.raises(DataError, match=r"holds 25 % of the impressions without a positive label"):
        judge(base, [alike.log], alike.examples, settle=NOW)


def test_a_verdict_about_another_production_is_none(base, alike):
    judge(base, [alike.log], None, settle=NOW)
    (base.root / "1").rename(base.root / "3")  # a night published meanwhile
    with pytest.raises(RunError, match=r"compared with version 1, and version 3 is in production"):
        trials.promote(base)
    with pytest.raises(RunError, match=r"version 3 went into production during the trial"):
        trials.promote(base, {"verdict"})
    assert trials.stop(base) == 2
    assert (base.production(), list(base.withdrawn())) == (3, [2])
