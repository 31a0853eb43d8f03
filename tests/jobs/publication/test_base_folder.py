"""The base folder: published, withdrawn, restored and removed versions, and what servers see."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from multigate.configs.errors import RunError
from multigate.jobs.night.listing import show_base
from multigate.jobs.publication import base_folder
from multigate.jobs.publication.base_folder import LINEAGE, Base
from multigate.jobs.publication.pair import Candidate, Pair
from multigate.serving.versions.folders import missing_files, scan
from multigate.verbs.command import main


@pytest.fixture
def make(tmp_path):
    """A base folder, and a way to publish one more version there."""
    base = Base(tmp_path / "models/night")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "weights.h5").write_bytes(b"weights")

    def publish(run: str, replaces: int | None = None) -> int:
        export = tmp_path / "export" / run
        for name in missing_files(export) if not export.exists() else ():
            (export / name).parent.mkdir(parents=True, exist_ok=True)
            (export / name).write_text("{}")
        lineage = {"run": run, "candidate": run, "start": "full", "full_since": run}
        return base.publish(
            export, checkpoint, lineage, base.production() if replaces is None else replaces
        )

    base.publish_next = publish
    return base


def numbers(base):
    return list(base.versions()), list(base.withdrawn())


def test_versions_count_up_and_carry_their_lineage(make):
    assert [make.publish_next(day) for day in ("2026-01-01", "2026-01-02")] == [1, 2]
    assert (make.production(), make.rollback_target()) == (2, 1)
    assert make.lineage(2)["run"] == "2026-01-02"
    assert (make.checkpoint(2) / "weights.h5").read_bytes() == b"weights"
    assert [entry["action"] for entry in make.history()] == ["published", "published"]


def test_a_candidate_is_published_once(make):
    first = make.publish_next("2026-01-01")
    assert make.publish_next("2026-01-01") == first
    assert numbers(make) == ([1], [])


def test_a_candidate_that_was_withdrawn_is_not_published_again(make):
    make.publish_next("2026-01-01")
    make.publish_next("2026-01-02")
    make.rollback()
    with pytest.raises(
        RunError, match=r"as version 2 and withdrawn; multigate publish --version 2"
    ):
        make.publish_next("2026-01-02")
    assert numbers(make) == ([1], [2])


def test_a_decision_about_another_version_is_not_followed(make):
    make.publish_next("2026-01-01")
    make.publish_next("2026-01-02")
    with pytest.raises(RunError, match=r"version 2 is in production, .* about version 1"):
        make.publish_next("2026-01-03", replaces=1)
    assert numbers(make) == ([2, 1], [])


def test_rollback_and_return_and_numbers_are_never_used_twice(make):
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        make.publish_next(day)
    assert make.rollback() == 2
    assert numbers(make) == ([2, 1], [3])
    assert make.publish_next("2026-01-04") == 4
    assert make.choose(1) == 1
    assert numbers(make) == ([1], [4, 3, 2])
    assert make.choose(3) == 3
    assert numbers(make) == ([3, 1], [4, 2])
    assert make.publish_next("2026-01-05") == 5
    assert make.lineage(4)["run"] == "2026-01-04"  # a withdrawn one still knows


def test_between_two_versions_no_third_is_offered(make):
    """Whoever looks while a version is chosen sees the old one on top or the new one."""
    for n in range(1, 9):
        make.publish_next(f"2026-01-0{n}")
    seen, stop = set(), threading.Event()

    def look():
        while not stop.is_set():
            seen.add(next(iter(scan(make.root))))

    watcher = threading.Thread(target=look)
    watcher.start()
    rounds = 0
    while watcher.is_alive() and (rounds < 20 or len(seen) < 2):  # until it has looked
        make.choose(2)
        make.choose(8)
        rounds += 1
    stop.set()
    watcher.join()
    assert seen == {2, 8}


def test_tidy_keeps_the_newest(make):
    for n in range(1, 8):
        make.publish_next(f"2026-01-0{n}")
    make.choose(5)
    assert make.remove_old(2) == [3, 2, 1]
    assert numbers(make) == ([5, 4], [7, 6])
    assert (make.production(), make.rollback_target()) == (5, 4)
    assert sorted(path.name for path in (make.root / ".checkpoints").iterdir()) == list("4567")
    assert make.publish_next("2026-01-08") == 8
    left = sorted(path.name for path in make.root.iterdir())
    assert left == [".checkpoints", ".history.jsonl", ".lock", ".withdrawn", "4", "5", "8"]


def test_nothing_to_return_to(make):
    make.publish_next("2026-01-01")
    with pytest.raises(RunError, match=r"to return to; versions: 1; withdrawn: none"):
        make.rollback()
    with pytest.raises(RunError, match=r"no version 7; versions: 1; withdrawn: none"):
        make.choose(7)
    assert make.production() == 1


def test_a_rollback_does_not_wait_for_a_publication_that_copies(make, monkeypatch):
    for day in (1, 2):
        make.publish_next(f"2026-01-0{day}")
    copies, go_on = threading.Event(), threading.Event()
    copytree = base_folder.shutil.copytree

    def slow_copy(*arguments, **options):
        copies.set()
        go_on.wait()
        return copytree(*arguments, **options)

    monkeypatch.setattr(base_folder.shutil, "copytree", slow_copy)
    monkeypatch.setattr(base_folder, "_WAIT", 0.0)
    failures = []

    def publish():
        try:
            make.publish_next("2026-01-03")
        except RunError as error:
            failures.append(str(error))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        assert copies.wait(200)
        assert make.rollback() == 1
    finally:
        go_on.set()
        publisher.join()
    # The decision was about version 2, which is no longer in production.
    assert len(failures) == 1
    assert "version 1 is in production, and the decision was about version 2" in failures[0]
    assert numbers(make) == ([1], [2])
    assert not list(make.root.rglob(".*.partial"))


def test_what_is_published_is_on_the_disk_before_servers_see_it(make, monkeypatch):
    """Without fsync, a power cut may leave a version of empty files."""
    done = []
    fsync, rename = os.fsync, Path.rename

    def watch_fsync(descriptor):
        done.append(("fsync", Path(f"/proc/self/fd/{descriptor}").resolve()))
        fsync(descriptor)

    def watch_rename(path, target):
        done.append(("rename", path.resolve()))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "rename", watch_rename)
    make.publish_next("2026-01-01")
    folder = make.root / "1"
    (renamed,) = [
        place
        for place, (what, path) in enumerate(done)
        if what == "rename" and path.parent == make.root and path.name.startswith(".publication.")
    ]
    temporary = done[renamed][1]
    before = {path for what, path in done[:renamed] if what == "fsync"}
    after = {path for what, path in done[renamed:] if what == "fsync"}
    for path in (folder, *folder.rglob("*")):
        if path != folder / LINEAGE:  # renamed itself, in a folder that was synced after it
            assert temporary / path.relative_to(folder) in before, path
    assert temporary / Path(LINEAGE).parent in before
    assert make.root in after
    assert make.root / ".checkpoints" in after


def test_a_full_disk_is_not_in_a_rollbacks_way(make, full_disk, caplog):
    make.publish_next("2026-01-01")
    make.publish_next("2026-01-02")
    (make.root / ".lock").write_text("")
    with full_disk(200):  # the lock's text fits, the history has grown beyond
        assert make.rollback() == 1
    assert "not recorded: {" in caplog.text
    assert make.production() == 1


def test_a_damaged_lineage_says_what_to_do(make):
    make.publish_next("2026-01-01")
    (make.root / "1" / LINEAGE).write_text("{")
    with pytest.raises(RunError, match=r"run\.json: not valid JSON: .*; withdraw version 1"):
        make.lineage(1)


def test_the_verb(make, capsys):
    for day in ("2026-01-01", "2026-01-02", "2026-01-03"):
        make.publish_next(day)
    base = ["publish", "--base", str(make.root), "--json"]

    def call(*arguments):
        status = main([*base, *arguments])
        printed = capsys.readouterr()
        return status, json.loads(printed.out), printed.err

    status, result, shown = call("--rollback")
    assert (status, result["production"], result["rollback"]) == (0, 2, 1)
    assert "withdrawn" in shown
    status, result, shown = call("--version", "3")
    assert (status, result["production"], result["rollback"]) == (0, 3, 2)
    status, result, shown = call()
    assert result["versions"] == [
        {"version": n, "withdrawn": False, "run": f"2026-01-0{n}"} for n in (3, 2, 1)
    ]
    assert main([*base, "--version", "9"]) == 2
    assert "no version 9; versions: 3, 2, 1" in capsys.readouterr().err


@pytest.fixture
def pair(make):
    """A ranker's base and its candidate model's, and a way to publish both or the ranker alone."""
    both = Pair(make)
    folder = make.root.parents[1] / "found"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint/weights.npz").write_bytes(b"towers")

    def publish(
        run: str, *, alone: bool = False, towers: str = "", ranker: str = ""
    ) -> tuple[int, int | None]:
        exports = make.root.parents[1] / "export" / run, folder / run
        for export in exports:
            for name in missing_files(export) if not export.exists() else ():
                (export / name).parent.mkdir(parents=True, exist_ok=True)
                (export / name).write_text("{}")
        over = both.candidates.production()
        identity = towers or f"towers {run}"
        candidate = Candidate(exports[1], folder / "checkpoint", identity, over)
        lineage = {"run": run, "candidate": ranker or run, "start": "warm", "full_since": "then"}
        checkpoint = make.root.parents[1] / "checkpoint"
        over = make.production()
        return both.publish(exports[0], checkpoint, lineage, over, None if alone else candidate)

    both.next = publish
    return both


def in_production(pair):
    return pair.ranker.production(), pair.candidates.production()


def test_a_pair_shares_its_number_and_is_rolled_back_as_one(pair):
    assert pair.next("2026-01-01") == (1, 1)
    assert pair.next("2026-01-02") == (2, 2)
    assert pair.next("2026-01-03", alone=True) == (3, None)
    assert in_production(pair) == (3, 2)
    assert pair.next("2026-01-04") == (4, 4)
    lineage = pair.candidates.lineage(4)
    assert (lineage["candidate"], lineage["ranker"]) == ("towers 2026-01-04", 4)
    assert (lineage["compared_with"], lineage["start"]) == (2, "full")  # its own, not the ranker's
    assert (pair.rollback(), in_production(pair)) == (3, (3, 2))
    assert (pair.rollback(), in_production(pair)) == (2, (2, 2))
    assert (pair.rollback(), in_production(pair)) == (1, (1, 1))
    assert (pair.choose(4), in_production(pair)) == (4, (4, 4))
    assert pair.next("2026-01-05") == (5, 5)


def test_versions_from_before_there_were_candidates_leave_them_alone(pair):
    pair.next("2026-01-01", alone=True)
    assert pair.next("2026-01-02") == (2, 2)
    assert (pair.rollback(), in_production(pair)) == (1, (1, 2))


def test_where_the_ranker_is_not_published_the_candidates_are_not(pair, monkeypatch):
    """The last rename fails, after the candidates' own."""
    pair.next("2026-01-01")
    rename = Path.rename

    def refuse(path, target):
        if Path(target) == pair.ranker.root / "2":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(OSError, match="Read-only"):
            pair.next("2026-01-02")
    assert in_production(pair) == (1, 1)
    assert numbers(pair.candidates) == ([1], [])
    assert pair.next("2026-01-02") == (2, 2)


def test_a_ranker_that_may_not_be_published_takes_no_candidates_along(pair):
    pair.next("2026-01-01")
    export = pair.candidates.versions()[1]
    candidate = Candidate(export, export, "towers", 1)
    with pytest.raises(RunError, match="the decision was about version 7"):
        pair.publish(export, export, {"run": "r", "candidate": "c"}, 7, candidate)
    assert in_production(pair) == (1, 1)


def test_killed_between_the_renames_it_ends_with_the_same_numbers(pair):
    pair.next("2026-01-01")
    folder = pair.ranker.root.parents[1] / "found"
    lineage = {"run": "2026-01-02", "candidate": "towers 2026-01-02"}
    pair.candidates.publish(folder / "2026-01-01", folder / "checkpoint", lineage, 1, lowest=2)
    assert in_production(pair) == (1, 2)
    assert pair.next("2026-01-02") == (2, 2)
    assert in_production(pair) == (2, 2)


def test_tidy_keeps_the_candidates_of_the_rankers_that_stay(pair):
    pair.next("2026-01-01")
    pair.next("2026-01-02")
    for n in range(3, 7):
        pair.next(f"2026-01-0{n}", alone=True)
    pair.next("2026-01-07")
    assert pair.remove_old(2) == ([5, 4, 3, 2, 1], [1])
    assert numbers(pair.candidates) == ([7, 2], [])
    assert (pair.rollback(), in_production(pair)) == (6, (6, 2))


def test_candidates_that_a_ranker_never_had_do_not_come_back_with_it(pair):
    """Ranker 3 was published after candidates 2 were withdrawn."""
    pair.next("2026-01-01")
    pair.next("2026-01-02")
    pair.rollback()
    assert pair.next("2026-01-03", alone=True) == (3, None)
    assert pair.next("2026-01-04") == (4, 4)
    assert (pair.rollback(), in_production(pair)) == (3, (3, 1))
    assert numbers(pair.candidates) == ([1], [4, 2])


def test_candidates_that_were_withdrawn_alone_stay_withdrawn(pair, capsys):
    for day in ("2026-01-01", "2026-01-02"):
        pair.next(day)
    pair.candidates.rollback()
    assert in_production(pair) == (2, 1)
    assert show_base(pair.ranker)["candidates"] == 1
    assert "candidate version 1 is in production" in capsys.readouterr().out
    assert pair.next("2026-01-03") == (3, 3)
    assert (pair.rollback(), in_production(pair)) == (2, (2, 1))
    assert (pair.choose(2), in_production(pair)) == (2, (2, 2))  # who asks for it gets all of it


def test_candidates_repeated_for_a_ranker_that_stays(pair):
    """`--force candidates_training` with other options: the ranker is the one of before."""
    pair.next("2026-01-01")
    assert pair.next("2026-01-01", towers="other towers") == (1, 2)
    assert pair.next("2026-01-02") == (3, 3)
    assert (pair.rollback(), in_production(pair)) == (1, (1, 2))


def test_candidates_that_are_allowed_later_get_their_rankers_number(pair):
    pair.next("2026-01-01")
    assert pair.next("2026-01-02", alone=True) == (2, None)
    assert pair.next("2026-01-02") == (2, 2)


def test_a_ranker_repeated_with_the_same_candidates(pair):
    """`--force training` with other options: the candidate model is the one of before."""
    pair.next("2026-01-01")
    assert pair.next("2026-01-01", ranker="other") == (2, 1)
    assert pair.next("2026-01-02") == (3, 3)
    assert (pair.rollback(), in_production(pair)) == (2, (2, 1))


def test_a_candidate_that_was_replaced_says_so(pair):
    pair.next("2026-01-01")
    pair.next("2026-01-01", ranker="other")
    with pytest.raises(RunError, match=r"as version 1, which version 2 replaced; .* --version 1"):
        pair.next("2026-01-01")


def test_an_interruption_after_the_last_rename_leaves_both(pair, monkeypatch):
    pair.next("2026-01-01")

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pair.ranker, "note", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pair.next("2026-01-02")
    assert in_production(pair) == (2, 2)


def test_tidy_keeps_the_candidates_of_withdrawn_rankers_and_of_those_above_a_leftover(pair):
    pair.next("2026-01-01")
    pair.next("2026-01-02", alone=True)
    pair.rollback()  # ranker 2 is withdrawn, its candidates 1 stay
    pair.next("2026-01-03")
    folder = pair.ranker.root.parents[1] / "found"
    for n in (4, 5):  # nights that were killed between the renames and never went on
        left = {"run": f"2026-01-0{n}", "candidate": f"left {n}", "ranker": n}
        pair.candidates.publish(folder / "2026-01-01", folder / "checkpoint", left, n - 1, lowest=n)
    assert pair.next("2026-01-06") == (6, 6)
    assert pair.remove_old(2) == ([1], [4])
    assert (pair.rollback(), in_production(pair)) == (3, (3, 3))
    assert (pair.choose(2), in_production(pair)) == (2, (2, 1))


def test_a_damaged_lineage_is_not_in_a_rollbacks_way(pair):
    pair.next("2026-01-01")
    pair.next("2026-01-02")
    for base in (pair.ranker, pair.candidates):
        (base.root / "1" / LINEAGE).write_text("{")
    assert (pair.rollback(), in_production(pair)) == (1, (1, 1))


def test_the_verb_takes_the_pair_back_inside_its_folder(pair, monkeypatch, capsys):
    for day in ("2026-01-01", "2026-01-02"):
        pair.next(day)
    monkeypatch.chdir(pair.ranker.root)
    assert main(["publish", "--base", ".", "--rollback"]) == 0
    assert in_production(pair) == (1, 1)


def test_the_verb_takes_the_pair_back(pair, capsys):
    pair.next("2026-01-01")
    pair.next("2026-01-02")
    assert main(["publish", "--base", str(pair.ranker.root), "--rollback", "--json"]) == 0
    printed = capsys.readouterr()
    assert in_production(pair) == (1, 1)
    assert [one["candidates"] for one in json.loads(printed.out)["versions"]] == [2, 1]
    assert "candidates" in printed.err
