"""Slices of the real logs, as their publishers ship them, from the file to a ranked list."""

import io
import lzma
import zipfile

import polars as pl
import pytest

from multigate.jobs import demo


@pytest.fixture
def deskdrop(real_data, tmp_path):
    """The events of some 95 users, in a zip as the publisher's."""
    with zipfile.ZipFile(real_data("deskdrop/users_interactions.csv.zip")) as archive:
        text = archive.read("users_interactions.csv")
    events = pl.read_csv(io.BytesIO(text), infer_schema=False)
    users = events["personId"].unique().sort()[::20]
    events = events.filter(pl.col("personId").is_in(users.to_list()))
    data = tmp_path / "deskdrop"
    data.mkdir()
    with zipfile.ZipFile(data / "users_interactions.csv.zip", "w") as archive:
        archive.writestr("users_interactions.csv", events.write_csv())
    return data


@pytest.fixture
def movielens(real_data, tmp_path):
    """The ratings of some 100 users."""
    with lzma.open(real_data("ml-1m/ratings.dat.xz"), "rt") as file:
        lines = [line for line in file if int(line.partition("::")[0]) % 60 == 0]
    data = tmp_path / "ml-1m"
    data.mkdir()
    with lzma.open(data / "ratings.dat.xz", "wt") as file:
        file.writelines(lines)
    return data


@pytest.mark.slow
@pytest.mark.parametrize("name", ["movielens", "deskdrop"])
def test_a_slice_of_the_real_file_becomes_ranked_lists(name, request, small_config, tmp_path):
    config, data = small_config(name), request.getfixturevalue(name)
    result = demo.run(config, data, tmp_path / "out")

    assert set(result["tasks"]) == set(config.contract.tasks)
    learnt = result["tasks"]["view" if name == "deskdrop" else "watch"]
    assert learnt["value"] > 0.55, "one epoch on a slice beats chance"
    assert all(task["best_possible"] is None for task in result["tasks"].values())
    examples = pl.read_parquet(tmp_path / "out/examples/train/*.parquet")
    known = set(examples[config.contract.item].to_list())
    for ranked in result["ranked"]:
        assert len(ranked) == 50
        assert {type(item["item_id"]) for item in ranked} == {int if name == "movielens" else str}
        assert any(item["item_id"] in known for item in ranked)
        scores = [item["score"] for item in ranked]
        assert scores == sorted(scores, reverse=True)
