"""What jobs print."""

from pathlib import Path

from multigate.jobs.show import say, show_manifest


def test_paths_and_reasons_are_printed_as_they_are(capfd):
    say("report /data/[new]/report.html; expected one of [a], [/b]")
    show_manifest({"rows": {"rows_in": 1}, "examples": {"splits": {}}}, Path("/data/[new]"))
    said = capfd.readouterr().out
    assert said.startswith("report /data/[new]/report.html; expected one of [a], [/b]\n")
    assert "examples in /data/[new]" in said
