import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import DataError
from multigate.configs.statistics import NumberStatistics, Statistics
from multigate.model.data import encoding
from multigate.model.data.encoding import Encoder
from multigate.model.data.hashing import hash_ids


def contract(**features: dict) -> Contract:
    return Contract.model_validate(
        {
            "user": "user_id",
            "item": "item_id",
            "features": {
                "user_id": {"kind": "id", "side": "user", "oov_buckets": 3},
                "item_id": {"kind": "id", "side": "item", "dtype": "int"},
                **features,
            },
            "tasks": {
                "click": {"group": "engagement", "type": "binary", "label": {"rule": "impression"}}
            },
        }
    )


def encoder(statistics: dict[str, NumberStatistics] | None = None, **features: dict) -> Encoder:
    made = contract(**features)
    return Encoder(
        made,
        Statistics(features=statistics or {}, tasks={}, rows={}),
        {"user_id": pa.array(["ann", "bob"]), "item_id": pa.array([70, -5, 8])},
    )


def table(rows: int = 1, **columns: pa.Array) -> pa.Table:
    ids = {"user_id": pa.array(["ann"] * rows), "item_id": pa.array([70] * rows)}
    return pa.table(ids | columns)


def measured(mean: float = 0.0, std: float = 1.0, *edges: float) -> NumberStatistics:
    return NumberStatistics(count=9, missing=0, mean=mean, std=std, boundaries=edges)


def test_known_ids_follow_the_unseen_ones() -> None:
    encode = encoder()
    ids = pa.table({"user_id": ["bob", "ann", "Zoë"], "item_id": [8, -5, 99]})
    codes = encode(ids)
    # Rows: 0 missing; users 1-3 unseen, then ann 4, bob 5; items 1 unseen, then 70, -5, 8.
    np.testing.assert_array_equal(codes["user_id"][:2], [5, 4])
    assert 1 <= codes["user_id"][2] <= 3
    np.testing.assert_array_equal(codes["item_id"], [4, 3, 1])
    assert codes["user_id"].dtype == np.int32
    assert (encode.rows("user_id"), encode.rows("item_id")) == (6, 5)


def test_missing_ids() -> None:
    place = {"kind": "id", "side": "user", "share": "user_id"}
    encode = encoder(
        filled=place | {"missing": "default", "default": "bob"},
        marked=place | {"missing": "indicator"},
    )
    empty = pa.array(["", None, "ann"])
    codes = encode(table(3, filled=empty, marked=empty))
    np.testing.assert_array_equal(codes["filled"], [5, 5, 4])
    np.testing.assert_array_equal(codes["marked"], [0, 0, 4])
    assert encode.rows("filled") == encode.rows("user_id")


def test_a_missing_value_that_must_not_be_missing() -> None:
    ids = pa.table({"user_id": ["ann", None, ""], "item_id": [1, 2, 3]})
    with pytest.raises(DataError, match=r"feature 'user_id': 2 of 3 rows have no value"):
        encoder()(ids)
    number = {"kind": "number", "side": "item", "scale": "none"}
    with pytest.raises(DataError, match=r"feature 'price': 1 of 1 rows"):
        encoder(price=number)(table(price=pa.array([float("nan")])))


def test_hash_buckets_keep_no_vocabulary() -> None:
    encode = encoder(query={"kind": "id", "side": "context", "hash_buckets": 7})
    codes = encode(table(3, query=pa.array(["shoes", "hats", "shoes"])))["query"]
    assert codes[0] == codes[2]
    assert codes.min() >= 1
    assert codes.max() <= 7
    assert encode.rows("query") == 8


def test_values_that_lists_do_not_keep_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def spy(ids: pa.Array, buckets: int) -> np.ndarray:
        hashed.extend(ids.to_pylist())
        return hash_ids(ids, buckets)

    monkeypatch.setattr(encoding, "hash_ids", spy)
    tags = {"kind": "id_list", "side": "item", "max_length": 2, "hash_buckets": 50}
    found = encoder(tags=tags)(pa.table({"tags": [["a", "b", "c"], ["d"], None]}), ["tags"])
    assert set(hashed) == {"b", "c", "d"}
    codes = 1 + hash_ids(pa.array(["b", "c", "d"]), 50)
    np.testing.assert_array_equal(found["tags"], [codes[:2], [codes[2], 0], [0, 0]])


def test_lists_keep_their_last_values_and_are_padded_at_the_end() -> None:
    history = {"kind": "id_list", "side": "user", "share": "item_id", "dtype": "int"}
    encode = encoder(recent=history | {"max_length": 2})
    lists = pa.array([[70, -5, 8], [], None, [8], [None, 70]], pa.list_(pa.int64()))
    codes = encode(table(5, recent=lists))["recent"]
    np.testing.assert_array_equal(codes, [[3, 4], [0, 0], [0, 0], [4, 0], [0, 2]])
    # A slice of a larger array starts in the middle of its buffers.
    sliced = encode(table(5, recent=lists).slice(3))["recent"]
    np.testing.assert_array_equal(sliced, codes[3:])


def test_numbers_are_standardised_after_their_transform() -> None:
    number = {"kind": "number", "side": "item"}
    encode = encoder(
        {"price": measured(2.0, 4.0), "views": measured(1.0, 2.0)},
        price=number | {"missing": "default", "default": 6.0},
        views=number | {"transform": "log1p", "missing": "indicator"},
    )
    price, views = pa.array([10.0, None]), pa.array([np.e - 1, -7.0, np.inf, None])
    codes = encode(table(2, price=price, views=views[:2]))
    np.testing.assert_allclose(codes["price"], [2.0, 1.0])  # (10 - 2) / 4, (6 - 2) / 4
    np.testing.assert_allclose(codes["views"], [0.0, -0.5], atol=1e-6)  # (1 - 1) / 2, (0 - 1) / 2
    np.testing.assert_array_equal(codes["views__present"], [1.0, 1.0])
    codes = encode(table(2, price=price, views=views[2:]))
    np.testing.assert_array_equal(codes["views"], [0.0, 0.0])
    np.testing.assert_array_equal(codes["views__present"], [0.0, 0.0])


def test_buckets_count_the_boundaries_up_to_the_value() -> None:
    number = {"kind": "number", "side": "item", "scale": "buckets", "buckets": 3}
    edges = measured(0.0, 1.0, 1.0, 2.0)
    encode = encoder(
        {"age": edges, "views": edges},
        age=number | {"missing": "indicator"},
        views=number | {"transform": "log1p", "missing": "default", "default": 0.0},
    )
    ages = pa.array([0.5, 1.0, 2.5, None])
    views = pa.array([np.expm1(1.0).astype(np.float32), np.expm1(2.0) + 0.1, -3.0, None])
    codes = encode(table(4, age=ages, views=views))
    np.testing.assert_array_equal(codes["age"], [1, 2, 3, 0])
    np.testing.assert_array_equal(codes["age__present"], [1, 1, 1, 0])
    np.testing.assert_array_equal(codes["views"], [2, 3, 1, 1])
    assert encode.rows("age") == 4


def test_positions() -> None:
    encode = encoder(place={"kind": "position", "max_position": 3})
    codes = encode(table(4, place=pa.array([None, 0, 3, 90])))["place"]
    np.testing.assert_array_equal(codes, [0, 1, 4, 4])
    assert encode.rows("place") == 5


def test_an_empty_table_keeps_its_shapes() -> None:
    history = {"kind": "id_list", "side": "user", "share": "item_id", "dtype": "int"}
    encode = encoder(recent=history | {"max_length": 2})
    empty = table(1, recent=pa.array([[]], pa.list_(pa.int64()))).slice(0, 0)
    codes = encode(empty)
    assert codes["user_id"].shape == (0,)
    assert codes["recent"].shape == (0, 2)


def test_dictionary_columns_are_read_like_plain_ones() -> None:
    plain = table(2, user_id=pa.array(["bob", "nobody"]))
    coded = plain.set_column(0, "user_id", plain["user_id"].dictionary_encode())
    np.testing.assert_array_equal(encoder()(plain)["user_id"], encoder()(coded)["user_id"])


def test_columns_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="column 'item_id': absent"):
        encoder()(pa.table({"user_id": ["ann"]}))
    with pytest.raises(DataError, match="column 'item_id': type string"):
        encoder()(pa.table({"user_id": ["ann"], "item_id": ["seventy"]}))


def test_what_the_contract_asks_for_must_be_there() -> None:
    statistics = Statistics(features={}, tasks={}, rows={})
    with pytest.raises(DataError, match="feature 'user_id': no vocabulary"):
        Encoder(contract(), statistics, {})
    with pytest.raises(DataError, match="feature 'price': no statistics"):
        encoder(price={"kind": "number", "side": "item"})


def test_read(tmp_path) -> None:
    made = contract()
    frozen = FrozenContract(
        contract=made, schema_fingerprint=made.schema_fingerprint(), data_fingerprint="0"
    )
    (tmp_path / "contract.json").write_text(frozen.model_dump_json())
    (tmp_path / "statistics.json").write_text(json.dumps({"features": {}, "tasks": {}, "rows": {}}))
    with pytest.raises(DataError, match=r"user_id\.parquet: no vocabulary here"):
        Encoder.read(tmp_path)
    (tmp_path / "vocabularies").mkdir()
    for name, values in {"user_id": ["ann", "bob"], "item_id": [70, -5, 8]}.items():
        counted = pa.table({"value": values, "count": range(len(values))})
        pq.write_table(counted, tmp_path / "vocabularies" / f"{name}.parquet")
    ids = pa.table({"user_id": ["bob", "eve"], "item_id": [8, 9]})
    for name, codes in Encoder.read(tmp_path)(ids).items():
        np.testing.assert_array_equal(codes, encoder()(ids)[name])


def reference_hash(value: str | int, buckets: int) -> int:
    """The formula of `model.data.hashing`, in Python's unbounded integers."""
    wrap, P = 2**64, 0x9E3779B97F4A7C15
    if isinstance(value, int):
        h = value % wrap
    else:
        data = value.encode()
        h = len(data) + sum((c + 1) * pow(P, i + 1, wrap) for i, c in enumerate(data[:256]))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        h %= wrap
        h = (h ^ (h >> shift)) * factor
    h %= wrap
    return ((h ^ (h >> 31)) >> 1) % buckets


@pytest.mark.parametrize(
    "values",
    [
        ["", "a", "\0", "Zoë 🎬", "x" * 255, "x" * 256, "x" * 256 + "y", "x" * 256 + "yz"],
        [0, 1, -1, 2**63 - 1, -(2**63)],
    ],
)
def test_hash(values: list) -> None:
    expected = [reference_hash(value, 1000) for value in values]
    np.testing.assert_array_equal(hash_ids(pa.array(values), 1000), expected)


def test_the_hash_spreads_similar_ids_evenly() -> None:
    for values in (pa.array(range(0, 400_000, 8)), pa.array([f"item-{i}" for i in range(50_000)])):
        counts = np.bincount(hash_ids(values, 50), minlength=50)
        # 1000 expected each, with a standard deviation of 31; five deviations either way.
        assert abs(counts - 1000).max() < 160
