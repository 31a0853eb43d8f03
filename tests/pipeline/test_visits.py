"""Logs that name no users: each request is a visit by someone unknown."""

import numpy as np
import polars as pl
import pytest

from multigate.configs import ConfigError
from multigate.pipeline.job import run

NO_USER = {
    "contract.user": None,
    "contract.features": {
        "item_id": {"kind": "id", "side": "item", "dtype": "int"},
        "device": {"kind": "id", "side": "context"},
        "item_views": {
            "kind": "number",
            "side": "item",
            "count": {"of": "item", "events": ["impression"]},
        },
    },
    "contract.rates": {"of": ["item"], "tasks": ["click"]},
    "contract.tasks.stars": None,
    "pipeline.log.columns": {"time": "time", "item": "item_id", "request": "request"},
    "pipeline.split": {"by": "time", "validation": 0.2, "test": 0.2, "embargo": False},
}


def write(folder, rows=60, seed=0):
    """Three impressions a request, of which every fifth has no request id."""
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame(
        {
            "time": 1_700_000_000 + 10 * (np.arange(rows) // 3),
            "item_id": rng.permuted(np.tile(np.arange(3), (rows // 3, 1)), axis=1).ravel(),
            "device": rng.choice(["web", "ios"], rows),
            "request": [None if n % 15 < 3 else f"r{n // 3}" for n in range(rows)],
            "click": rng.integers(0, 2, rows),
        }
    )
    frame.write_csv(folder / "log.csv")
    return frame


def test_each_request_is_a_user_and_each_row_without_one(
    impression_config, read_examples, tmp_path
):
    log = write(tmp_path)
    run(impression_config(**NO_USER), tmp_path, tmp_path / "out")
    examples = read_examples(tmp_path / "out")
    assert len(examples) == len(log)
    requests = log["request"].drop_nulls().unique()
    named = examples.filter(pl.col("visit").is_in(requests.to_list()))
    assert named.group_by("visit").len()["len"].to_list() == [3] * len(requests)
    others = examples.filter(~pl.col("visit").is_in(requests.to_list()))
    assert others["visit"].n_unique() == len(others) == log["request"].null_count()


def test_the_rows_are_those_of_a_log_that_names_each_request_as_its_user(
    impression_config, read_examples, tmp_path
):
    log = write(tmp_path).filter(pl.col("request").is_not_null())
    log.write_csv(tmp_path / "log.csv")
    run(impression_config(**NO_USER), tmp_path, tmp_path / "out")
    user = {"kind": "id", "side": "user", "column": "request"}
    changes = NO_USER | {"contract.user": "user_id", "contract.features.user_id": user}
    changes["pipeline.log.columns"] = NO_USER["pipeline.log.columns"] | {"user": "request"}
    run(impression_config(**changes), tmp_path, tmp_path / "named")
    found = read_examples(tmp_path / "out")
    expected = read_examples(tmp_path / "named").rename({"user_id": "visit"})
    assert found.equals(expected.select(found.columns))


def test_repeated_rows_are_duplicates_all_the_same(impression_config, read_examples, tmp_path):
    log = write(tmp_path)
    pl.concat([log, log]).write_csv(tmp_path / "log.csv")
    run(impression_config(**NO_USER), tmp_path, tmp_path / "out")
    assert len(read_examples(tmp_path / "out")) == len(log)


@pytest.mark.parametrize(
    "features",
    [
        {"seen": {"kind": "number", "side": "user", "count": {"of": "user", "events": ["click"]}}},
        {
            "clicked": {
                "kind": "id_list",
                "side": "user",
                "dtype": "int",
                "share": "item_id",
                "history": {"events": ["click"], "last": 3},
            }
        },
    ],
)
def test_a_users_past_needs_users(features, impression_config, tmp_path):
    write(tmp_path)
    changes = NO_USER | {"contract.features": NO_USER["contract.features"] | features}
    with pytest.raises(ConfigError, match=f"features.{next(iter(features))}: .*names no user"):
        run(impression_config(**changes), tmp_path, tmp_path / "out")


def test_rates_of_the_user_need_users(impression_config, tmp_path):
    write(tmp_path)
    changes = NO_USER | {"contract.rates": {"of": ["user", "item"], "tasks": ["click"]}}
    with pytest.raises(ConfigError, match=r"of rates: of: \[item\]"):
        run(impression_config(**changes), tmp_path, tmp_path / "out")


def test_a_contract_with_a_user_needs_its_column(impression_config, tmp_path):
    columns = {"time": "time", "item": "item_id"}
    with pytest.raises(ConfigError, match=r"columns\.user: required: contract\.user is 'user_id'"):
        run(impression_config(**{"pipeline.log.columns": columns}), tmp_path, tmp_path / "out")


def test_a_feature_of_the_reserved_name_is_refused(impression_config):
    visit = {"kind": "id", "side": "user"}
    with pytest.raises(ConfigError, match="'visit': stands for the user"):
        impression_config(**(NO_USER | {"contract.features.visit": visit}))
