"""Users to forget leave no trace, and ids stay out of messages, logs and redacted rejects."""

import logging
import random

import polars as pl
import pytest
import yaml

from multigate.configs import DataError
from multigate.pipeline.audit.audit import audit
from multigate.pipeline.job import run
from multigate.verbs.command import main

HEADER = "time,event,item,user,session,value,device"
CHANGES = {
    "contract.features.item_views": {
        "kind": "number",
        "side": "item",
        "count": {"of": "item", "events": ["VIEW"]},
    },
    "contract.features.age": {
        "kind": "number",
        "side": "user",
        "source": "users",
        "missing": "indicator",
    },
    "pipeline.users": {"files": ["users.csv"], "key": "id"},
    "pipeline.negatives": {"per_positive": 2, "sampling": "popularity"},
    "pipeline.buckets": 2,
}
GONE = ["secret-3", "secret-5"]


def lines():
    rng = random.Random(0)
    kinds = ["VIEW"] * 6 + ["LIKE"] * 2 + ["DISLIKE", "BUY", "RATE"]
    return [
        f"{1_700_000_000 + rng.randint(0, 9000)},{rng.choice(kinds)},i{rng.randint(0, 19)},"
        f"secret-{rng.randint(0, 7)},s,1,phone"
        for _ in range(250)
    ]


BAD = ["soon,VIEW,i1,secret-3,s,1,phone", "1700000000,VIEW,i1,secret-1,s", '9,"secret-2']


def write(folder, rows):
    folder.mkdir()
    (folder / "log.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    users = [f"secret-{n},{20 + n}" for n in range(8)]
    (folder / "users.csv").write_text("\n".join(["id,age", *users]) + "\n")
    return folder


def bytes_of(out):
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*.*")
        if path.is_file()
        # `totals.json` says by a hash which users were forgotten.
        and path.name not in ("manifest.json", "report.json", "totals.json")
        and path.parent.name != "rejects"
    }


def test_forgotten_users_leave_what_a_log_without_them_gives(event_config, tmp_path):
    config = event_config(**CHANGES)
    folder = write(tmp_path / "log", lines() + BAD)
    (tmp_path / "gone.txt").write_text("\n".join(["", *GONE, "secret-nobody"]) + "\r\n")
    manifest = run(config, folder, tmp_path / "out", forget=tmp_path / "gone.txt")
    rest = [line for line in lines() if line.split(",")[3] not in GONE]
    without = run(config, write(tmp_path / "less", rest), tmp_path / "never")
    # Examples, negatives and their draws, counters, vocabularies, statistics and snapshots.
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "never")
    assert manifest["rows"]["forgotten"] == 250 - len(rest) > 30
    assert manifest["examples"] == without["examples"]
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "out").rglob("*.*") if path.is_file()
    )
    assert all(user.encode() not in everything for user in GONE)  # the users stand in dictionaries
    rejects = pl.read_parquet(tmp_path / "out/rejects/*.parquet")
    assert rejects["line"].to_list() == [252, 253, 254]
    assert set(rejects["text"]) == {""}
    gone = tmp_path / "gone.txt"
    assert audit(config, folder, tmp_path / "out", forget=gone)["examples"] > 100
    with pytest.raises(DataError, match="item_views"):
        audit(config, folder, tmp_path / "out", sample=10_000)


def test_who_alone_had_an_event_may_be_forgotten(event_config, tmp_path):
    """A request to forget must not stop the nightly run."""
    rest = [line.replace("BUY", "LIKE") for line in lines() if ",secret-3," not in line]
    folder = write(tmp_path / "log", [*rest, "1700000500,BUY,i1,secret-3,s,1,phone"])
    (tmp_path / "gone.txt").write_text("secret-3\n")
    run(event_config(**CHANGES), folder, tmp_path / "out", forget=tmp_path / "gone.txt")
    labels = pl.concat(
        pl.read_parquet(tmp_path / "out" / split) for split in ("train", "validation", "test")
    )
    assert labels["label/bought"].null_count() == len(labels) > 50


def test_the_list_may_stand_in_the_configuration(event_config, tmp_path):
    folder = write(tmp_path / "log", lines())
    (folder / "gone.txt").write_text("secret-3 \n")  # a blank that an editor left
    config = event_config(**CHANGES, **{"pipeline.forget": "gone.txt"})
    manifest = run(config, folder, tmp_path / "out")
    assert manifest["rows"]["forgotten"] == sum(",secret-3," in line for line in lines())
    assert audit(config, folder, tmp_path / "out")["examples"] > 100
    (folder / "gone.txt").unlink()
    with pytest.raises(DataError, match=r"no file 'gone.txt' of users to forget"):
        run(config, folder, tmp_path / "again")


def test_only_a_line_feed_ends_an_id(impression_config, read_examples, tmp_path):
    """As in the log; `bob` is another person than the one whose id ends in U+2028."""
    users = ["ann", "ann\x85x", "bob", "bob\u2028"]
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars\n"
        + "".join(f"{at},{users[at % 4]},1{at},r,,,,1,\n" for at in range(40))
    )
    (tmp_path / "gone.txt").write_bytes("ann\x85x\r\n\nbob\u2028\n".encode())
    config = impression_config(**{"contract.features.user_id.dtype": "string"})
    run(config, tmp_path, tmp_path / "out", forget=tmp_path / "gone.txt")
    assert set(read_examples(tmp_path / "out")["user_id"].to_list()) == {"ann", "bob"}


@pytest.mark.parametrize("redact", [False, True])
def test_rejects_can_be_redacted(redact, event_config, tmp_path):
    config = event_config(**CHANGES, **{"pipeline.redact_rejects": redact})
    run(config, write(tmp_path / "log", lines() + BAD), tmp_path / "out")
    rejects = pl.read_parquet(tmp_path / "out/rejects/*.parquet")
    assert len(rejects) == 3
    assert rejects["text"].str.contains("secret").any() != redact
    assert not rejects["reason"].str.contains("secret").any()


@pytest.mark.parametrize("failing", ["none", "rejects", "column", "table", "list", "audit"])
def test_no_id_is_said_or_logged(failing, event_config, caplog, capfd, tmp_path):
    caplog.set_level(logging.INFO)
    folder = write(tmp_path / "log", lines() + BAD)
    config = event_config(**CHANGES)
    path, listed = tmp_path / "config.yaml", tmp_path / "gone.txt"
    path.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True)))
    listed.write_text("\n".join(GONE) + "\n")
    arguments = ["--config", str(path), "--data", str(folder)]
    extra = ["--forget", str(listed)]
    if failing == "rejects":
        extra += ["--max_reject_rate", "0"]
    elif failing == "column":
        (folder / "log.csv").write_text("time,event\n1,secret-1\n")
    elif failing == "table":
        (folder / "users.csv").write_text("id,age\nsecret-1,3\nsecret-1,4\n")
    elif failing == "list":
        listed.write_text("secret-" + "x" * 2000 + "\n")
    made = main(["examples", *arguments, "--out", str(tmp_path / "out"), *extra])
    assert made == (0 if failing in ("none", "audit") else 2)
    if failing == "audit":
        arguments += ["--examples", str(tmp_path / "out"), "--sample", "10000"]
        assert main(["audit", *arguments]) == 2
    printed = capfd.readouterr()
    said = printed.out + printed.err + caplog.text
    assert len(said) > 40
    assert "secret" not in said


def test_a_list_of_numbers_must_hold_numbers(impression_config, tmp_path):
    (tmp_path / "log.csv").write_text(
        "time,user_id,item_id,request,price,tags,place,click,stars\n"
        + "".join(f"{at},{at % 3},1{at},r,,,,1,\n" for at in range(30))
    )
    (tmp_path / "gone.txt").write_text("1\n")
    manifest = run(impression_config(), tmp_path, tmp_path / "o", forget=tmp_path / "gone.txt")
    assert manifest["rows"]["forgotten"] == 10
    (tmp_path / "gone.txt").write_text("1\nann\n")
    with pytest.raises(DataError, match=r"gone\.txt: line 2: expected an integer$"):
        run(impression_config(), tmp_path, tmp_path / "p", forget=tmp_path / "gone.txt")
