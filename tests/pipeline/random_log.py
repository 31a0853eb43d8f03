"""A random log of events in several files, for runs that must give the same examples."""

import random
from collections.abc import Sequence
from pathlib import Path

START = 1_700_000_000
_KINDS = ["VIEW", "VIEW", "LIKE", "DISLIKE", "BUY", "RATE"]


def write_log(
    folder: Path, files: int, rows: int, users: int, devices: Sequence[str] = ("phone",)
) -> Path:
    """Make a folder of CSV files; the last row of each has no time that can be read."""
    rng = random.Random(3)
    folder.mkdir()
    for at in range(files):
        lines = ["time,event,item,user,session,value,device"]
        for row in range(rows):
            event, item, user = rng.choice(_KINDS), rng.randrange(30), rng.randrange(users)
            value = rng.choice(["", "2"])
            device = rng.choice(devices) if len(devices) > 1 else devices[0]
            time = START + 300 * row + at
            lines.append(f"{time},{event},i{item},u{user},s{row // 50},{value},{device}")
        lines.append(f"never,VIEW,i1,u1,s,,{devices[0]}")
        (folder / f"log-{at}.csv").write_text("\n".join(lines) + "\n")
    return folder
