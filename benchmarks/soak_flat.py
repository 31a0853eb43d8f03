"""Whether a process under `benchmarks/soak.py` keeps its threads, descriptors and memory.

Judged is the rise of a line through the samples after a warm-up, in which allocators and pools grow
to their size: the median of the slopes between all pairs of samples (Theil and Sen), which a few
samples in the middle of a swap do not move.
"""

import statistics
from dataclasses import dataclass
from typing import TypedDict

import psutil
from scipy.stats import theilslopes

WARM_UP = 180.0
"""Seconds whose samples are not judged; half of a run that is shorter than twice that."""
MOST_THREADS, MOST_DESCRIPTORS = 10, 20
"""Rise over the time that is judged: connections come and go."""
MOST_MEMORY, MOST_OF_A_SHORT_RUN = 0.03, 0.125
"""Likewise, as a share; the latter for less than ten minutes, in which not all has settled."""


@dataclass(frozen=True)
class Sample:
    """A process at one moment."""

    seconds: float
    """Since the measuring began."""
    threads: int
    descriptors: int
    mebibytes: float

    @classmethod
    def of(cls, process: psutil.Process, seconds: float) -> "Sample":
        """Look at a process."""
        return cls(
            seconds,
            process.num_threads(),
            process.num_fds(),
            process.memory_info().rss / (1 << 20),
        )


class Rise(TypedDict):
    """How much a line through the samples rises over the time that is judged.

    Attributes:
        seconds: that are judged.
        threads: more.
        descriptors: more.
        memory: share of the median.
    """

    seconds: int
    threads: float
    descriptors: float
    memory: float


KINDS = ("threads", "descriptors", "mebibytes")


def rise_of(samples: list[Sample]) -> Rise:
    """The rise after the warm-up."""
    warm_up = min(WARM_UP, samples[-1].seconds / 2)
    judged = [one for one in samples if one.seconds >= warm_up]
    seconds = judged[-1].seconds - judged[0].seconds
    times = [one.seconds for one in judged]
    found = {}
    for kind in KINDS:
        values = [float(getattr(one, kind)) for one in judged]
        slope = float(theilslopes(values, times).slope) if len(judged) > 1 else 0.0
        found[kind] = slope * seconds, statistics.median(values)
    return {
        "seconds": round(seconds),
        "threads": round(found["threads"][0], 1),
        "descriptors": round(found["descriptors"][0], 1),
        "memory": round(found["mebibytes"][0] / found["mebibytes"][1], 4),
    }


def leaks(rise: Rise) -> bool:
    """Whether that is more than chance."""
    most = MOST_MEMORY if rise["seconds"] >= 600 else MOST_OF_A_SHORT_RUN
    return (
        rise["threads"] > MOST_THREADS
        or rise["descriptors"] > MOST_DESCRIPTORS
        or rise["memory"] > most
    )


def by_minute(samples: list[Sample]) -> list[dict[str, list[float]]]:
    """Least, median and most of each minute, by kind."""
    minutes: dict[int, list[Sample]] = {}
    for one in samples:
        minutes.setdefault(int(one.seconds // 60), []).append(one)
    return [
        {
            kind: [
                round(of([getattr(one, kind) for one in some]), 1)
                for of in (min, statistics.median, max)
            ]
            for kind in KINDS
        }
        for _, some in sorted(minutes.items())
    ]


def table(who: str, samples: list[Sample]) -> list[str]:
    """The same as lines of text."""
    lines = [f"{who}, least/median/most of each minute: threads, descriptors, MiB"]
    for minute, found in enumerate(by_minute(samples), 1):
        cells = ["/".join(f"{number:g}" for number in found[kind]) for kind in KINDS]
        lines.append(f"  minute {minute:2}: {'  '.join(cells)}")
    return lines
