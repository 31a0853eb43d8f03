"""What a verb is given, before anything is imported."""

import argparse
from contextlib import ExitStack
from pathlib import Path

import pytest

from multigate.configs.config import load
from multigate.configs.contract import FrozenContract
from multigate.verbs.inputs import examples_folders


@pytest.mark.parametrize("pattern", ["runs/2026-*", "../.home/runs/2026-*", "{}/runs/2026-*"])
def test_a_glob_is_read_from_a_hidden_folder_and_from_the_folder_above(
    pattern, tmp_path, monkeypatch
):
    contract = load("demo").contract
    frozen = FrozenContract(
        contract=contract, schema_fingerprint=contract.schema_fingerprint(), data_fingerprint="0"
    )
    home = tmp_path / ".home"
    for name in ("2026-01-01", "2026-01-02", ".2026-01-03.partial", "other"):
        folder = home / "runs" / name
        folder.mkdir(parents=True)
        (folder / "contract.json").write_text(frozen.model_dump_json())
    monkeypatch.chdir(home)
    with ExitStack() as temporary:
        given = argparse.Namespace(examples=[pattern.format(home)], days=None, temporary=temporary)
        found = examples_folders(given)
    assert [Path(one).resolve().name for one in found] == ["2026-01-01", "2026-01-02"]
