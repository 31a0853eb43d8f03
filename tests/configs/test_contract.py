"""The contract: fingerprints, derived names and its file."""

import json
from importlib.resources import files

import pytest
import yaml

from multigate.configs import ConfigError, DataError, FrozenContract, load
from multigate.configs.contract import Contract, fingerprint, fingerprint_of_list
from multigate.configs.sections.base import parse


def changed(**tasks_or_features) -> Contract:
    """Deskdrop's contract with some keys of its first task and first feature replaced."""
    values = load("deskdrop").contract.model_dump(mode="json")
    values["tasks"]["view"] |= tasks_or_features.get("view", {})
    values["features"]["user_id"] |= tasks_or_features.get("user_id", {})
    values["combine"] |= tasks_or_features.get("combine", {})
    return parse(Contract, values, "changed")


def test_weights_do_not_change_the_schema_but_features_and_tasks_do():
    contract = load("deskdrop").contract
    schema = contract.schema_fingerprint()
    assert changed().schema_fingerprint() == schema
    assert changed(view={"weight": 7.0, "score_weight": -1.0}).schema_fingerprint() == schema
    assert changed(combine={"kind": "product"}).schema_fingerprint() == schema
    assert changed(view={"group": "satisfaction"}).schema_fingerprint() != schema
    assert changed(user_id={"missing": "indicator"}).schema_fingerprint() != schema
    assert changed(user_id={"oov_buckets": 2}).schema_fingerprint() != schema


def test_the_pooling_of_a_list_does_not_change_the_schema():
    """Examples hold the list itself, so that they serve a model of any pooling."""
    contract = load("deskdrop").contract
    values = contract.model_dump(mode="json")
    lists = [name for name, f in values["features"].items() if f["kind"] == "id_list"]
    assert lists
    for name in lists:
        values["features"][name]["pooling"] = "sequence"
    assert parse(Contract, values, "pooled").schema_fingerprint() == contract.schema_fingerprint()


def test_a_key_with_its_default_does_not_change_the_schema():
    """A new option must not part a contract from the models that serve it already."""
    contract = load("deskdrop").contract
    values = contract.model_dump(mode="json", exclude_unset=True)
    assert "oov_buckets" not in values["features"]["user_id"]
    values["features"]["user_id"]["oov_buckets"] = 1
    explicit = parse(Contract, values, "explicit")
    assert explicit.schema_fingerprint() == contract.schema_fingerprint()


def test_what_a_counter_counts_is_part_of_the_schema():
    values = load("deskdrop").contract.model_dump(mode="json")
    schema = parse(Contract, values, "same").schema_fingerprint()
    assert schema == load("deskdrop").contract.schema_fingerprint()
    values["features"]["item_views_1d"]["count"]["within"] = "2d"
    assert parse(Contract, values, "window").schema_fingerprint() != schema
    values["features"]["item_views_1d"]["count"]["within"] = "24h"  # a day, written otherwise
    assert parse(Contract, values, "same").schema_fingerprint() == schema


def test_fingerprint_ignores_the_order_of_keys_only():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint([1, 2]) != fingerprint([2, 1])


def test_tasks_come_after_those_that_their_labels_refer_to():
    values = load("deskdrop").contract.model_dump(mode="json")
    values["tasks"]["view"]["when"] = "comment"
    values["tasks"]["comment"]["without"] = "follow"
    order = parse(Contract, values, "x").tasks_in_order()
    assert order.index("follow") < order.index("comment") < order.index("view")
    assert sorted(order) == sorted(values["tasks"])


def test_position_is_on_no_side():
    contract = load("demo").contract
    assert contract.position == "position"
    assert [name for name, _ in contract.of_side("context")] == ["hour"]
    assert load("deskdrop").contract.position is None


def test_shared_vocabulary():
    contract = load("demo").contract
    assert contract.vocabulary_of("recent_clicks") == "item_id"
    assert contract.vocabulary_of("topic") == "topic"
    assert contract.vocabulary_of("age") == "age"


def test_contract_file_round_trips_and_detects_edits(tmp_path):
    contract = load("deskdrop").contract
    frozen = FrozenContract(
        contract=contract, schema_fingerprint=contract.schema_fingerprint(), data_fingerprint="d"
    )
    path = tmp_path / "contract.json"
    path.write_text(frozen.model_dump_json())
    assert FrozenContract.read(path) == frozen
    values = json.loads(path.read_text())
    values["contract"]["features"]["region"]["oov_buckets"] = 9
    path.write_text(json.dumps(values))
    with pytest.raises(DataError, match="edited by hand"):
        FrozenContract.read(path)
    path.write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        FrozenContract.read(path)
    with pytest.raises(DataError, match="no contract here"):
        FrozenContract.read(tmp_path / "absent.json")


def without_rates() -> dict:
    """Deskdrop's contract as its file has it, without rates."""
    preset = files("multigate.configs.presets").joinpath("deskdrop.yaml")
    values = yaml.safe_load(preset.read_text(encoding="utf-8"))["contract"]
    del values["rates"]
    return values


def with_rates(**rates) -> Contract:
    """Deskdrop's contract with other rates than its own."""
    return parse(Contract, without_rates() | {"rates": rates}, "with rates")


def test_rates_become_explicit_features():
    plain = parse(Contract, without_rates(), "plain")
    contract = with_rates(of=["user", "item"], tasks=["view", "dwell", "like"], within="28d")
    made = {n: f for n, f in contract.features.items() if n not in plain.features}
    assert list(made) == [
        f"{key}_{name}"
        for key in ("user", "item")
        for name in ("view_count", "dwell_mean", "dwell_count", "like_rate", "like_count")
    ]
    assert contract.rates is None
    count, rate = made["item_like_count"], made["item_like_rate"]
    assert (count.kind, count.side, count.transform) == ("number", "item", "log1p")
    assert (rate.side, rate.transform, rate.missing) == ("item", "identity", "error")
    assert rate.label_rate.model_dump(mode="json", exclude_none=True) == {
        "of": "item",
        "task": "like",
        "within": "2419200s",
        "strength": 10.0,
    }
    assert made["user_dwell_mean"].label_mean.task == "dwell"
    everything = with_rates(of=["user"])
    counts = [name for name in everything.features if name.endswith("_count")]
    assert counts == ["user_view_count", "user_dwell_count", "user_like_count"]
    assert len(everything.features) == len(plain.features) + len(plain.tasks) - 1 + len(counts)


def test_expanded_rates_travel_as_data():
    contract = with_rates(of=["user"], tasks=["like"])
    values = contract.model_dump(mode="json")
    assert "rates" not in values
    again = parse(Contract, values, "again")
    assert again == contract
    assert again.schema_fingerprint() == contract.schema_fingerprint()
    other = with_rates(of=["user"], tasks=["like"], strength=11.0)
    assert other.schema_fingerprint() != contract.schema_fingerprint()


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ({"of": ["topic"]}, "rates.of.0: input should be 'user' or 'item'; received 'topic'"),
        ({"of": ["user"], "tasks": ["lik"]}, "rates.tasks: expected all, or some of view, dwell,"),
        (
            {"of": ["user"], "task": "all"},
            r"rates.task: unknown key; did you mean 'tasks'\? expected one of last, of",
        ),
        ({"of": ["user"], "strength": 0.0}, "rates.strength: input should be greater than 0"),
    ],
)
def test_wrong_rates_are_named(rates, message):
    with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
        with_rates(**rates)


def feature(**keys) -> dict:
    return {"kind": "number", "side": "user", **keys}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            feature(label_rate={"of": "user", "task": "dwell"}),
            "feature 'x': label_rate needs a binary task; 'dwell' is a regression task; use "
            "label_mean",
        ),
        (
            feature(label_mean={"of": "user", "task": "like"}),
            "label_mean needs a regression task; 'like' is a binary task; use label_rate",
        ),
        (
            feature(label_rate={"of": "user", "task": "view"}),
            "every logged impression's label 'view' is 1",
        ),
        (feature(label_count={"of": "user", "task": "liked"}), "task: expected one of view, dwell"),
        (
            feature(label_count={"of": "item", "task": "like"}),
            "a label_count of the item is of side 'item', received side 'user'",
        ),
        (
            feature(label_rate={"of": "user", "task": "like", "prior": 1.5}),
            "prior: expected a rate from 0 to 1, received 1.5",
        ),
        (
            feature(
                label_count={"of": "user", "task": "like"},
                label_rate={"of": "user", "task": "like"},
            ),
            "received label_count and label_rate",
        ),
    ],
)
def test_wrong_features_over_labels_are_named(made, message):
    values = load("deskdrop").contract.model_dump(mode="json")
    values["features"]["x"] = made
    with pytest.raises(ConfigError) as caught:
        parse(Contract, values, "contract")
    assert message in str(caught.value)


def test_a_name_that_rates_would_take_twice_is_refused():
    values = without_rates()
    values["features"]["user_like_rate"] = feature(count={"of": "user", "events": ["LIKE"]})
    values["rates"] = {"of": ["user"], "tasks": ["like"]}
    with pytest.raises(ConfigError, match="rates: makes a feature 'user_like_rate', and features"):
        parse(Contract, values, "contract")


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_fingerprint_of_a_list_does_not_depend_on_its_parts(size):
    for values in ([], ["a", 'b"', "é", "]["], list(range(7))):
        parts = [values[at : at + size] for at in range(0, len(values), size)]
        assert fingerprint_of_list([[], *parts, []]) == fingerprint(values)
