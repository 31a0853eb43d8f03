"""Nights that build the candidate model beside the ranker: published, refused, and as a pair."""

import json
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from multigate.configs.config import load
from multigate.configs.contract import Contract, FrozenContract
from multigate.configs.errors import ConfigError, MultigateError, RunError
from multigate.configs.sections.base import parse
from multigate.configs.sections.run import ALL_STAGES, STAGES
from multigate.jobs.lock import locked
from multigate.jobs.night.candidate_stages import write_config
from multigate.jobs.night.child import run_verb
from multigate.jobs.night.folder import RunFolder
from multigate.jobs.night.listing import list_runs
from multigate.jobs.night.night import Night
from multigate.jobs.night.nightly import run
from multigate.jobs.publication.base_folder import Base
from multigate.jobs.publication.pair import Pair
from multigate.serving.client.rank_client import RankClient
from multigate.serving.core.options import ServerOptions
from multigate.serving.rpc.server import Server
from multigate.serving.versions.folders import CONTRACT, missing_files
from multigate.verbs.command import main

ROOT = Path(__file__).parents[3]
DAY, NEXT_DAY = date(2026, 1, 30), date(2026, 1, 31)
STEPS = tuple(stage for stage in ALL_STAGES if stage != "candidates_report")


def pair_of(runs):
    return Pair(Base(runs / "models/night"))


def numbers(runs):
    pair = pair_of(runs)
    return pair.ranker.production(), pair.candidates.production()


def schema(version: Path) -> str:
    return FrozenContract.read(version / CONTRACT).schema_fingerprint


def known_user(both) -> dict[str, str]:
    """The most frequent user."""
    users = pl.read_parquet(RunFolder(both.runs, DAY).examples / "vocabularies/user_id.parquet")
    return {"user_id": users["value"][0]}


@pytest.mark.slow
def test_a_night_publishes_both(both):
    result, folder, pair = both.result, RunFolder(both.runs, DAY), pair_of(both.runs)
    assert (result["state"], result["version"]) == ("published", 1)
    assert list(result["seconds"]) == list(STEPS)
    told = result["candidates"]
    assert (told["version"], told["production"], told["verdict"]) == (1, 1, "bless")
    assert 0 < told["recall"]["candidate"] < 1
    assert told["recall"]["production"] is None
    ranker, candidates = pair.ranker.versions()[1], pair.candidates.versions()[1]
    assert schema(ranker) == schema(candidates)
    assert missing_files(candidates) == []
    assert pair.candidates.lineage(1)["run"] == str(DAY)
    assert (pair.candidates.checkpoint(1) / "weights.npz").exists()
    inputs = folder.record("candidates_export")["inputs"]
    assert inputs["candidates_training"] == folder.record("candidates_training")["output"]
    assert inputs["pipeline"] == folder.record("pipeline")["output"]
    with np.load(folder.candidates / "weights.npz") as weights:
        assert weights
    measured = folder.record("candidates_export")["result"]["metrics"]
    assert measured["questions"]["next_item"]["recall"]["popularity"]["10"] == pytest.approx(
        told["recall"]["popularity"]
    )


@pytest.mark.slow
def test_the_ranker_is_the_one_of_a_night_without_candidates(both, finished):
    files = [
        runs / "models/night/1/assets.extra/golden.json" for runs in (both.runs, finished.runs)
    ]
    assert files[0].read_text() == files[1].read_text()
    assert "candidates" not in finished.result
    assert list(finished.result["seconds"]) == list(STAGES)
    assert not (finished.runs / "models/night-candidates").exists()


@pytest.mark.slow
def test_a_finished_pair_is_not_repeated(both, nights, tmp_path):
    assert run(nights.config(candidates={}), DAY, tmp_path / "no logs", both.runs) == both.result


@pytest.mark.slow
def test_the_table_of_runs_tells_of_candidates(both, capsys):
    assert main(["runs", "--out", str(both.runs), "--json"]) == 0
    printed = capsys.readouterr()
    (row,) = json.loads(printed.out)["runs"]
    assert row["candidates"]["version"] == 1
    assert "version 1, recall@10" in printed.err
    assert f"{both.result['candidates']['recall']['candidate']:.4f}" in printed.err


@pytest.mark.slow
def test_the_pair_is_served(both):
    pair = pair_of(both.runs)
    options = ServerOptions(
        model_name="night",
        model_base_path=pair.ranker.root,
        candidates_base_path=pair.candidates.root,
        retrieval_timeout_ms=20_000,
        feature_clock="cut_off",
        port=0,
    )
    server = Server(options)
    server.start()
    try:
        with RankClient(f"127.0.0.1:{server.port}", timeout=60) as client:
            found = client.recommend("night", user=known_user(both), candidates=20, limit=5)
            assert (found.source, found.model_version, found.candidates_version) == (
                *("RETRIEVED", 1, 1),
            )
            assert len(found) == 5
    finally:
        server.stop()


@pytest.mark.slow
def test_a_refused_candidate_model_lets_the_ranker_go_alone(both, finished, nights, tmp_path):
    """Two epochs on this log are far from what popularity finds."""
    runs = both.unfinished(tmp_path / "runs", "decision")
    told = tmp_path / "told"
    config = nights.config(
        candidates={"rules": {"largest_below_popularity": 0.0}}, notify=f"sh -c 'cat > {told}'"
    )
    before = RunFolder(runs, DAY).record("candidates_training")
    result = run(config, DAY, finished.logs, runs)
    assert RunFolder(runs, DAY).record("candidates_training") == before  # rules do not train
    assert (result["state"], numbers(runs)) == ("published", (1, None))
    assert result["candidates"]["version"] is None
    (reason,) = result["candidates"]["reasons"]
    assert "below that of the most popular items" in reason
    assert reason in json.loads(told.read_text())["message"]
    (row,) = list_runs(runs)
    assert (row["version"], row["candidates"]["verdict"]) == (1, "refuse")


def test_stages_of_candidates_need_the_section(nights, finished, tmp_path):
    with pytest.raises(RunError, match="--force candidates_export: expected a stage of this conf"):
        runs = finished.copy(tmp_path / "runs")
        run(nights.config(), DAY, finished.logs, runs, force="candidates_export")


def test_a_section_that_came_later_is_noticed(nights, finished, tmp_path):
    with pytest.raises(RunError, match="without stage candidates_training; start it with --force"):
        run(nights.config(candidates={}), DAY, finished.logs, finished.copy(tmp_path / "runs"))


@pytest.mark.slow
def test_a_report_that_was_asked_for_later_is_noticed(nights, both):
    with pytest.raises(RunError, match="without stage candidates_report; start it with --force"):
        run(nights.config(candidates={"report_questions": 5}), DAY, both.logs, both.runs)


def test_a_task_that_is_none_is_noticed_before_the_first_stage(nights, tmp_path):
    config = nights.config(candidates={"positives": "rating"})
    with pytest.raises(ConfigError, match=r"candidates\.positives: expected one of click"):
        run(config, DAY, tmp_path, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_other_processes_read_the_same_configuration(nights, tmp_path):
    config = nights.config(candidates={"learning_rate": 1e-6}, notify="1e5 no é")
    config = config.model_copy(update={"name": "1e5"})
    night = Night(config, DAY, tmp_path, tmp_path, Base(tmp_path / "base"))
    night.folder.root.mkdir()
    write_config(night)
    assert load(night.folder.config).model_dump() == config.model_dump()


@pytest.mark.slow
def test_a_night_without_the_section_tells_of_candidates_that_it_leaves_behind(
    both, finished, nights, tmp_path
):
    """A ranker of one contract, the last candidate model of another."""
    runs = finished.unfinished(tmp_path / "runs", "decision")
    pair = pair_of(runs)
    shutil.copytree(pair_of(both.runs).candidates.root, pair.candidates.root)
    path = pair.candidates.versions()[1] / CONTRACT
    told = json.loads(path.read_text())
    del told["contract"]["features"]["length"]
    told["schema_fingerprint"] = parse(Contract, told["contract"], "it").schema_fingerprint()
    path.write_text(json.dumps(told))
    result = run(nights.config(), DAY, finished.logs, runs)
    assert (result["state"], numbers(runs)) == ("published", (1, 1))
    assert result["reasons"][-1] == (
        "candidate version 1 in production has another schema, and this night builds none: servers "
        "recommend popular items"
    )


def test_a_verb_in_a_process_of_its_own_tells_what_went_wrong(tmp_path):
    with pytest.raises(RunError, match=rf"^publish: {tmp_path}/none: no such folder; expected"):
        run_verb("publish", "--base", tmp_path / "none")
    with pytest.raises(RunError, match=r"^candidates guess: .*received 'guess'"):
        run_verb("candidates", "guess")


CALL = """
import sys
from multigate.jobs.night.child import run_verb
run_verb("publish", "--base", sys.argv[1], "--rollback")
"""


def test_it_ends_with_the_process_that_called(tmp_path):
    """The verb waits for a lock; its caller is killed."""
    for number in (1, 2):
        (tmp_path / str(number) / "assets.extra").mkdir(parents=True)

    lock = tmp_path / ".lock"

    def verbs(waiting: bool) -> int:
        """Processes of the verb, or those of them that have got to the lock."""
        found = 0
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
                if b"--rollback" in words and str(tmp_path).encode() in words:
                    opened = [path.resolve() for path in (process / "fd").iterdir()]
                    found += not waiting or lock in opened
            except OSError:  # it is gone
                continue
        return found

    def wait_until(count: int, waiting: bool) -> bool:
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            if verbs(waiting) == count:
                return True
            time.sleep(0.05)
        return False

    with locked(lock, "a test"):
        caller = subprocess.Popen([sys.executable, "-c", CALL, str(tmp_path)], cwd=ROOT)
        assert wait_until(1, waiting=True)
        caller.kill()
        caller.wait()
        assert wait_until(0, waiting=False)


@pytest.mark.long
@pytest.mark.parametrize("stage", ["candidates_training", "candidates_export"])
def test_a_full_disk_in_their_stages_publishes_nothing(both, nights, tmp_path, full_disk, stage):
    runs = both.unfinished(tmp_path / "runs", stage)
    with full_disk(3000), pytest.raises((MultigateError, OSError)):
        run(nights.config(candidates={}), DAY, both.logs, runs)
    assert numbers(runs) == (None, None)
    assert RunFolder(runs, DAY).record(stage) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_next_night_is_compared_and_both_are_taken_back(both, nights, tmp_path):
    runs = both.copy(tmp_path / "runs")
    config = nights.config(
        candidates={"report_questions": 20, "rules": {"largest_below_popularity": 1.0}},
        guards={"max_delay": "2d"},
    )
    config = config.model_copy(update={"evaluation": loose(config)})
    result = run(config, NEXT_DAY, both.logs, runs)
    told = result["candidates"]
    assert told["recall"]["production"] is not None
    assert (result["version"], told["version"], numbers(runs)) == (2, 2, (2, 2))
    report = json.loads(RunFolder(runs, NEXT_DAY).multistage.read_text())
    assert report["questions"] == 20
    assert main(["publish", "--base", str(runs / "models/night"), "--rollback"]) == 0
    assert numbers(runs) == (1, 1)


def loose(config):
    """Rules that any ranker keeps."""
    rules = config.evaluation.rules.model_copy(
        update={"judge": "estimate", "largest_loss": 1.0, "largest_ranking_loss": None}
    )
    kept = {"calibration": None, "least_auc": 0.0}
    return config.evaluation.model_copy(update={"rules": rules.model_copy(update=kept)})


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pairs_of_different_contracts_are_never_served_together(both, nights, tmp_path):
    """A feature goes; a server that follows both folders stays with the pair that it has."""
    runs, logs = both.copy(tmp_path / "runs"), both.logs
    config = nights.config(candidates={}, guards={"max_delay": "2d"})
    contract = config.contract
    fewer = {name: one for name, one in contract.features.items() if name != "country"}
    config = config.model_copy(
        update={
            "evaluation": loose(config),
            "contract": contract.model_copy(update={"features": fewer}),
        }
    )
    pair = pair_of(runs)
    old = schema(pair.ranker.versions()[1])

    def start() -> Server:
        options = ServerOptions(
            model_name="night",
            model_base_path=pair.ranker.root,
            candidates_base_path=pair.candidates.root,
            retrieval_timeout_ms=20_000,
            feature_clock="cut_off",
            file_system_poll_wait_seconds=0.1,
            port=0,
        )
        server = Server(options)
        server.start()
        return server

    def served(server: Server) -> tuple:
        with RankClient(f"127.0.0.1:{server.port}", timeout=60) as client:
            found = client.recommend("night", user=known_user(both), candidates=20, limit=5)
            return found.source, found.model_version, found.candidates_version

    server = start()
    try:
        assert served(server) == ("RETRIEVED", 1, 1)
        # A night whose candidate model is refused: production's has another schema.
        rules = {"largest_below_popularity": 0.0}
        candidates = config.candidates.model_copy(
            update={"rules": config.candidates.rules.model_copy(update=rules)}
        )
        strict = config.model_copy(update={"candidates": candidates})
        result = run(strict, NEXT_DAY, logs, runs)
        assert (result["state"], numbers(runs)) == ("refused", (1, 1))
        assert result["reasons"][-1].endswith(
            "candidate version 1 in production has another schema"
        )
        result = run(config, NEXT_DAY, logs, runs, force="decision")
        assert (result["state"], numbers(runs)) == ("published", (2, 2))
        assert schema(pair.ranker.versions()[2]) == schema(pair.candidates.versions()[2]) != old
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            records = [server.models.known_records(name) for name in ("night", "night-candidates")]
            if all(2 in found and found[2].state == "END" for found in records):
                break
            time.sleep(0.1)
        for found in records:
            assert "schema" in found[2].error
        assert served(server) == ("RETRIEVED", 1, 1)
    finally:
        server.stop()
    server = start()
    try:
        assert served(server) == ("RETRIEVED", 2, 2)
        pair.rollback()
        time.sleep(1)
        assert served(server) == ("RETRIEVED", 2, 2)
    finally:
        server.stop()
    server = start()
    try:
        assert served(server) == ("RETRIEVED", 1, 1)
    finally:
        server.stop()
    shutil.rmtree(pair.candidates.root / "1")
    server = start()
    try:
        assert served(server)[0] == "POPULAR"
    finally:
        server.stop()
