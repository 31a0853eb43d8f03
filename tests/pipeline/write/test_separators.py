"""A list that another separator splits is told, in the data report; other lists are not."""

import polars as pl
import pytest

from multigate.configs.contract import IdListFeature
from multigate.pipeline.job import run
from multigate.pipeline.write.data_report import read
from multigate.pipeline.write.separators import other_separator

TAGS = IdListFeature(kind="id_list", side="item")


@pytest.mark.parametrize(
    ("lists", "told"),
    [
        ([["drama,war"], ["war,news"], None] * 5, "hold ',', such as 'drama,war': set separator"),
        ([["drama; war"], ["war"], ["a;b"]] * 5, "67% of them hold ';'"),
        ([["drama", "war, news"], ["a,b"]] * 9, None),  # `|` does split
        ([["drama"], ["war"], ["AC/DC"]] * 9, None),
        ([["science fiction"]] * 20, None),  # blanks belong to words
        ([["a,b"]] * 9, None),  # too few to tell
        ([None, []] * 20, None),
    ],
)
def test_a_text_that_is_not_split_is_told(lists, told):
    found = other_separator("tags", TAGS, pl.Series(lists, dtype=pl.List(pl.String)))
    assert (found is None) if told is None else (told in found)


def test_the_data_report_advises(impression_config, tmp_path):
    rows = [f"{1_700_000_000 + n},{n % 7},{n % 5},x{n % 3};y,0,r{n}" for n in range(60)]
    header = "time,user_id,item_id,tags,click,request"
    (tmp_path / "log.csv").write_text("\n".join([header, *rows]) + "\n")
    changes = {"contract.features.price": None, "contract.features.place": None}
    changes |= {"contract.tasks.stars": None}
    run(impression_config(**changes), tmp_path, tmp_path / "out")
    advice = read(tmp_path / "out")["advice"]
    assert [line for line in advice if line.startswith("tags: every list is one value")]
    changes["contract.features.tags.separator"] = ";"
    run(impression_config(**changes), tmp_path, tmp_path / "split")
    advice = read(tmp_path / "split")["advice"]
    assert not [line for line in advice if line.startswith("tags:")]
