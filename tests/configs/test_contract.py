"""The contract: fingerprints, derived names and its file."""

import json

import pytest

from multigate.configs import DataError, FrozenContract, load
from multigate.configs.contract import Contract, fingerprint
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
