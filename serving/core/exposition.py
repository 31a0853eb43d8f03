"""Prometheus' text format: the metrics of several processes as one page."""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"(?P<name>[^{ ]+)(\{(?P<labels>.*)\})? (?P<number>[^ ]+)")


def merged(pages: Mapping[str, str]) -> str:
    """One page of several workers' pages; every sample gets the label `worker`.

    The samples of a metric stand together under one HELP and one TYPE, as the format demands.

    Args:
        pages: by worker.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, page in pages.items():
        metric = ""
        for line in page.splitlines():
            if line.startswith("# "):
                metric = line.split(" ", 3)[2]
                head = heads.setdefault(metric, [])
                if line not in head:
                    head.append(line)
            elif found := _SAMPLE.fullmatch(line):
                labels = ",".join(filter(None, (f'worker="{worker}"', found["labels"])))
                sample = f"{found['name']}{{{labels}}} {found['number']}"
                samples.setdefault(metric, []).append(sample)
    lines = [line for name in heads for line in (*heads[name], *samples.get(name, []))]
    return "".join(f"{line}\n" for line in lines)
