"""Rows' weights in training: a column of the log that is no feature."""

import polars as pl
import pyarrow.parquet as pq

from multigate.configs.files import WEIGHT
from multigate.pipeline.job import run

LOG = """time,user_id,item_id,click,stars,request,worth
1700000000,1,1,1,5,a,0.5
1700000010,1,2,0,,a,
1700000020,2,1,0,,b,3
1700000030,2,3,1,1,b,-1
1700000040,3,3,1,2,c,many
1700000050,3,2,0,,c,0
"""
CHANGES = {
    "contract.features.price": None,
    "contract.features.tags": None,
    "contract.features.place": None,
    "pipeline.log.columns.weight": "worth",
    "pipeline.split": {"by": "random", "validation": 0.2, "test": 0.2},
}


def test_weights_reach_the_examples_and_no_signature(impression_config, read_examples, tmp_path):
    (tmp_path / "log.csv").write_text(LOG)
    config = impression_config(**CHANGES)
    run(config, tmp_path, tmp_path / "out")
    examples = read_examples(tmp_path / "out").sort("meta/time")
    assert examples[WEIGHT].to_list() == [0.5, None, 3.0, 0.0]
    assert "worth" not in config.contract.features
    assert (
        config.contract.schema_fingerprint()
        == impression_config(
            **(CHANGES | {"pipeline.log.columns.weight": None})
        ).contract.schema_fingerprint()
    )
    reasons = pq.read_table(tmp_path / "out" / "rejects")["reason"].to_pylist()
    assert reasons == [
        "weight: expected a weight from 0 within float32",
        "weight: expected a number",
    ]


def test_a_sampled_negative_weighs_as_much_as_its_positive(event_config, read_examples, tmp_path):
    rows = ["time,user,item,event,value,session,worth"]
    for n in range(40):
        rows.append(f"{1_700_000_000 + 10 * n},u{n % 4},i{n % 7},VIEW,,s,{1 + n % 3}")
        rows.append(f"{1_700_000_001 + 10 * n},u{n % 4},i{n % 7},LIKE,,s,-5")  # not read
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    changes = {"pipeline.log.columns.weight": "worth", "contract.features.device": None}
    changes |= {f"contract.tasks.{task}": None for task in ("dislike", "good", "bought", "rated")}
    run(event_config(**changes), tmp_path, tmp_path / "out")
    examples = read_examples(tmp_path / "out")
    drawn, logged = (examples.filter(pl.col("meta/sampled") == one) for one in (True, False))
    assert len(logged) == 40
    assert len(drawn) > 10
    both = drawn.join(logged, on=["user_id", "meta/time"], suffix="/logged")
    assert len(both) == len(drawn)
    assert both[WEIGHT].equals(both[WEIGHT + "/logged"])
    assert sorted(set(logged[WEIGHT])) == [1.0, 2.0, 3.0]
