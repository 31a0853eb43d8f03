"""`multigate init` on logs as other systems write them: each draft fits its log as it stands."""

import gzip
import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from multigate.configs import DataError
from multigate.jobs.onboarding.check import check
from multigate.jobs.onboarding.draft import draft
from multigate.jobs.onboarding.drafted import Draft
from multigate.jobs.onboarding.tables.columns import is_measure, look, vector_size
from multigate.jobs.onboarding.tables.raw import find_tables
from multigate.jobs.onboarding.tables.spellings import respell
from multigate.pipeline import job

START = 1_767_225_600  # 2026-01-01
Row = dict[str, Any]


def requests(seed: int = 1) -> list[list[Row]]:
    """Lists of five items, some clicked by those who like their kind, some of these bought."""
    draw, made, at = random.Random(seed), [], START
    kinds = [draw.choice("ABC") for _ in range(120)]
    prices = [round(draw.uniform(3, 90), 2) for _ in range(120)]
    tastes = [draw.choice("ABC") for _ in range(200)]
    for number in range(1200):
        at += draw.randrange(200, 1500)
        user, rows = draw.randrange(200), []
        for place, item in enumerate(draw.sample(range(120), 5)):
            click = draw.random() < (0.5 if kinds[item] == tastes[user] else 0.1)
            row = {"at": at, "request": number, "user": user, "item": item, "place": place}
            row |= {"kind": kinds[item], "price": prices[item], "click": click}
            seconds = round(draw.uniform(2, 100), 1) if click else None
            rows.append(row | {"buy": click and draw.random() < 0.3, "seconds": seconds})
        made.append(rows)
    return made


def flat() -> list[Row]:
    return [row for rows in requests() for row in rows]


def spelled(at: int, form: str) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)


def comma(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}".replace(".", ",")


def write(path: Path, *lines: str, encoding: str = "utf-8") -> None:
    path.write_text("\n".join(lines) + "\n", encoding=encoding)


def german(folder: Path) -> None:
    """Semicolons, decimal commas, a byte-order mark, ja and nein, an empty column."""
    lines = ["Zeitpunkt;Anfrage;Kunde;Artikel;Platz;Art;Preis;Klick;Kauf;Dauer;leer"]
    for row in flat():
        words = ["ja" if row[name] else "nein" for name in ("click", "buy")]
        cells = [spelled(row["at"], "%d.%m.%Y %H:%M:%S"), f"q{row['request']}", f"K{row['user']}"]
        cells += [f"A{row['item']}", str(row["place"]), row["kind"], comma(row["price"])]
        lines.append(";".join([*cells, *words, comma(row["seconds"]), ""]))
    write(folder / "log.csv", *lines, encoding="utf-8-sig")


def american(folder: Path) -> None:
    """Months before days, twelve hours, Y and N; and no day above 12."""
    lines = ["created,request,user,item,slot,category,price,clicked"]
    for row in flat():
        time = spelled(row["at"], "%m/%d/%Y %I:%M %p")
        cells = [row["request"], row["user"], row["item"], row["place"], row["kind"], row["price"]]
        lines.append(",".join(map(str, [time, *cells, "Y" if row["click"] else "N"])))
    write(folder / "log.csv", *lines)


def nested(folder: Path) -> None:
    """Objects in objects, lists in them, and times of several zones."""
    lines = []
    for row in flat():
        zone = timezone(timedelta(hours=[-5, 0, 2][row["request"] % 3]))
        item = {"id": f"i{row['item']}", "attrs": {"kind": row["kind"], "price": row["price"]}}
        lines.append(
            json.dumps(
                {
                    "ts": datetime.fromtimestamp(row["at"], zone).isoformat(),
                    "user": {"id": f"u{row['user']}"},
                    "ctx": {"req": row["request"], "pos": row["place"]},
                    "item": item | {"tags": ["all", row["kind"]]},
                    "clicked": row["click"],
                    "outcome": {"bought": row["buy"]},
                }
            )
        )
    write(folder / "log.jsonl", *lines)


def twice(folder: Path) -> None:
    """A name that occurs twice, a column without a name, and one without values."""
    lines = ["time,user,item,kind,kind,clicked,,empty"]
    for row in flat():
        cells = [row["at"], row["user"], row["item"], row["kind"], f"{row['kind']}x"]
        lines.append(",".join(map(str, [*cells, int(row["click"]), "zz", ""])))
    write(folder / "log.csv", *lines)


def daily(folder: Path) -> None:
    """A folder for each day, Parquet with timestamps."""
    days: dict[str, list[Row]] = {}
    for row in flat():
        at = datetime.fromtimestamp(row["at"], UTC)
        days.setdefault(f"{at:%F}", []).append({**row, "at": at})
    for day, rows in days.items():
        (folder / f"date={day}").mkdir()
        pl.DataFrame(rows).write_parquet(folder / f"date={day}/part-0.parquet")


def vectors(folder: Path) -> None:
    """Parquet with timestamps without a zone, lists of texts, vectors, and stars."""
    rows = [
        {
            "ts": datetime.fromtimestamp(row["at"], UTC).replace(tzinfo=None),
            "uid": row["user"],
            "iid": row["item"],
            "tags": [row["kind"], "all"],
            "emb": [row["item"] / 7, 1.0, 2.0],
            "clicked": row["click"],
            "stars": None if row["seconds"] is None else int(1 + row["seconds"] // 20.1),
        }
        for row in flat()
    ]
    pl.DataFrame(rows).write_parquet(folder / "log.parquet")


def purchases(folder: Path) -> None:
    lines = ["order_id,customer,sku,amount,ordered_at"]
    for row in flat():
        if row["click"]:
            time = spelled(row["at"], "%Y-%m-%d %H:%M:%S")
            cells = (f"O{row['request']}", f"C{row['user']}", f"S{row['item']}", row["price"], time)
            lines.append(",".join(map(str, cells)))
    write(folder / "orders.csv", *lines)


def stars(folder: Path) -> None:
    """Ratings without times."""
    draw, seen = random.Random(4), {}
    for _ in range(8000):
        user, book = draw.randrange(300), int(draw.random() ** 2 * 200)
        liked = (user + book) % 3 - 1
        seen[user, book] = min(max(round(3.4 + liked + draw.gauss(0, 0.7)), 1), 5)
    lines = [f"{user},{book},{rating}" for (user, book), rating in seen.items()]
    write(folder / "reviews.csv", "userId,bookId,rating", *lines)


def baskets(folder: Path) -> None:
    """Orders without times, each user's together, a place as 1.0 and a flag as 0.0."""
    draw, lines, order = random.Random(5), ["order_id,user_id,product_id,in_cart,again"], 5000
    for user in draw.sample(range(10_000, 20_000), 150):
        bought: set[int] = set()
        for _ in range(draw.randrange(4, 12)):
            order += draw.randrange(1, 9)
            for place in range(1, draw.randrange(2, 30)):
                product = int(draw.random() ** 2 * 400)
                lines.append(f"{order},{user},{product},{place}.0,{float(product in bought)}")
                bought.add(product)
    write(folder / "orders.csv", *lines)


def of_lists(folder: Path) -> None:
    """One row for each request, with lists of what was shown and of what was clicked."""
    with gzip.open(folder / "requests.jsonl.gz", "wt") as file:
        for rows in requests():
            first, shown = rows[0], [f"i{row['item']}" for row in rows]
            clicked = [f"i{row['item']}" for row in rows if row["click"]]
            head = {"request": f"q{first['request']}", "ts": first["at"], "user": first["user"]}
            file.write(json.dumps({**head, "shown": shown, "clicked": clicked}) + "\n")


def of_labels(folder: Path) -> None:
    """One row for each request, with a list of labels beside that of the items."""
    lists = {"items": "item", "labels": "click", "prices": "price"}
    rows = [
        {"rid": one[0]["request"], "t": one[0]["at"], "who": one[0]["user"]}
        | {name: [row[of] * 1 for row in one] for name, of in lists.items()}
        for one in requests()
    ]
    pl.DataFrame(rows).write_parquet(folder / "log.parquet")


def of_marks(folder: Path) -> None:
    """One row for each request, whose items end in -1 where they were clicked; no header."""
    lines = []
    for rows in requests():
        first = rows[0]
        time = spelled(first["at"], "%m/%d/%Y %I:%M:%S %p")
        marks = " ".join(f"N{row['item']}-{int(row['click'])}" for row in rows)
        lines.append(f"{first['request']}\tU{first['user']}\t{time}\t{marks}")
    write(folder / "behaviors.tsv", *lines)


def of_choices(folder: Path) -> None:
    """One row for each request, with the items in one text and the one that was chosen."""
    lines = ["ts,visitor,slate,chosen"]
    for rows in requests():
        chosen = next((f"x{row['item']}" for row in rows if row["click"]), "")
        slate = "|".join(f"x{row['item']}" for row in rows)
        lines.append(f"{rows[0]['at']},v{rows[0]['user']},{slate},{chosen}")
    write(folder / "log.csv", *lines)


def words(folder: Path) -> None:
    """A column of two words says what was done, another one which device it was."""
    lines = ["t,u,i,k,c,device"]
    for row in flat():
        device, word = "mob" if row["request"] % 2 else "desk", "hit" if row["click"] else "miss"
        lines.append(f"{row['at']}000,{row['user']},{row['item']},{row['kind']},{word},{device}")
    write(folder / "log.csv", *lines)


def catalogue(folder: Path) -> None:
    """A measure of more values than there are items, and a table of items that tells them."""
    draw = random.Random(6)
    lines = ["t\tauction\tvisitor\tad\tclicked\tvisible_ms"]
    for row in flat():
        seen = row["click"] or draw.random() < 0.7
        shown = int(2.718 ** draw.gauss(6, 0.8)) + 1 if seen else 0
        cells = [1000 * row["at"], f"a{row['request']}", f"v{row['user']}", row["item"]]
        lines.append("\t".join(map(str, [*cells, "sí" if row["click"] else "no", shown])))
    write(folder / "shown.tsv", *lines)
    ads = [f"{item}\t{'AB'[item % 2]}\t{comma(3 + item / 7)}" for item in range(120)]
    write(folder / "ads.tsv", "ad\tformat\tbudget", *ads)


def apart(folder: Path) -> None:
    """Days and times of day in columns of their own."""
    lines = ["day,clock,user,item,clicked"]
    for row in flat():
        time = spelled(row["at"], "%Y-%m-%d,%H:%M:%S")
        lines.append(f"{time},{row['user']},{row['item']},{int(row['click'])}")
    write(folder / "log.csv", *lines)


def nanoseconds(folder: Path) -> None:
    rows = [{"ns": row["at"] * 10**9 + 5, **row} for row in flat()]
    pl.DataFrame(rows).drop("at", "request").write_parquet(folder / "log.parquet")


def of_objects(folder: Path) -> None:
    """A request is a line that lists objects, one for each item shown; keys are null elsewhere."""
    lines = []
    for shown in requests():
        slate = [
            {"ad": f"a{row['item']}", "taken": row["click"], "bid": 0.5 + row["item"] / 7}
            for row in shown
        ]
        first = shown[0]
        made = {"at": first["at"], "who": {"id": f"v{first['user']}"}, "rid": first["request"]}
        lines.append(json.dumps(made | {"slate": slate, "tags": [{"name": "x"}]}))
        lines.append(json.dumps(made | {"slate": [], "who": None}))
    write(folder / "log.ndjson", *lines)


def italian(folder: Path) -> None:
    """Dates of birth, numbers with commas, a weight that the outcome set."""
    lines = ["data;ricerca;cliente;nato_il;annuncio;canone;cliccato;peso"]
    for row in flat():
        taken, user = row["click"], row["user"]
        cells = [spelled(row["at"], "%d/%m/%Y %H:%M:%S"), f"R{row['request']}", f"C{user}"]
        cells += [f"{1 + user % 28:02d}/{1 + user % 12:02d}/{1935 + user}", f"A{row['item']}"]
        cells += [comma(300 + row["item"] / 3), "sì" if taken else "no"]
        lines.append(";".join([*cells, "1,0" if taken else "2,5"]))
    write(folder / "annunci.csv", *lines)


ODD: dict[str, tuple[Callable[[Path], None], dict[str, str], dict[str, str]]] = {
    # what writes it, roles, task -> type
    "german": (
        german,
        {"time": "Zeitpunkt", "user": "Kunde", "item": "Artikel", "request": "Anfrage"},
        {
            "klick": "binary",
            "kauf": "binary",
            "dauer": "regression",
            "dauer_long": "binary",
        },
    ),
    "american": (
        american,
        {"time": "created", "user": "user", "item": "item", "request": "request"},
        {"clicked": "binary"},
    ),
    "nested": (
        nested,
        {"time": "ts", "user": "user.id", "item": "item.id", "request": "ctx.req"},
        {"clicked": "binary", "outcome_bought": "binary"},
    ),
    "twice": (twice, {"time": "time", "user": "user", "item": "item"}, {"clicked": "binary"}),
    "daily": (
        daily,
        {"time": "at", "user": "user", "item": "item", "request": "request"},
        {"click": "binary", "buy": "binary", "seconds": "regression", "seconds_long": "binary"},
    ),
    "vectors": (
        vectors,
        {"time": "ts", "user": "uid", "item": "iid"},
        {"clicked": "binary", "stars": "regression", "stars_high": "binary"},
    ),
    "purchases": (
        purchases,
        {"time": "ordered_at", "user": "customer", "item": "sku", "request": "order_id"},
        {"chosen": "binary"},
    ),
    "stars": (
        stars,
        {"time": "time", "user": "userId", "item": "bookId"},
        {"chosen": "binary", "rating": "regression", "rating_high": "binary"},
    ),
    "baskets": (
        baskets,
        {"time": "time", "user": "user_id", "item": "product_id", "request": "order_id"},
        {"again": "binary"},
    ),
    "of lists": (
        of_lists,
        {"time": "ts", "user": "user", "item": "shown", "request": "request"},
        {"clicked": "binary"},
    ),
    "of labels": (
        of_labels,
        {"time": "t", "user": "who", "item": "items", "request": "rid"},
        {"labels": "binary"},
    ),
    "of marks": (
        of_marks,
        {"time": "column_3", "user": "column_2", "item": "column_4_item", "request": "column_1"},
        {"column_4_taken": "binary"},
    ),
    "of choices": (
        of_choices,
        {"time": "ts", "user": "visitor", "item": "slate"},
        {"chosen": "binary"},
    ),
    "of objects": (
        of_objects,
        {"time": "at", "user": "who.id", "item": "slate.ad", "request": "rid"},
        {"slate_taken": "binary"},
    ),
    "italian": (
        italian,
        {
            **{"time": "data", "user": "cliente", "item": "annuncio", "request": "ricerca"},
            "weight": "peso",
        },
        {"cliccato": "binary"},
    ),
    "words": (words, {"time": "t", "user": "u", "item": "i"}, {"c": "binary"}),
    "apart": (apart, {"time": "time", "user": "user", "item": "item"}, {"clicked": "binary"}),
    "nanoseconds": (
        nanoseconds,
        {"time": "ns", "user": "user", "item": "item"},
        {"click": "binary", "buy": "binary", "seconds": "regression", "seconds_long": "binary"},
    ),
    "catalogue": (
        catalogue,
        {"time": "t", "user": "visitor", "item": "ad", "request": "auction"},
        {"clicked": "binary"},
    ),
}


def drafted(name: str, folder: Path) -> Draft:
    folder.mkdir()
    ODD[name][0](folder)
    return draft(folder, "x")


@pytest.mark.parametrize("name", list(ODD))
def test_a_draft_fits_its_log(name, tmp_path):
    made = drafted(name, tmp_path / "log")
    _, roles, tasks = ODD[name]
    assert made.values["pipeline"]["log"]["columns"] == roles
    assert {n: one["type"] for n, one in made.values["contract"]["tasks"].items()} == tasks
    checked = check(made.config(), tmp_path / "log")
    assert not checked.fails, checked.findings
    assert checked.facts["rows"]["log"] > 1000


@pytest.mark.parametrize("name", ["german", "of marks", "baskets", "apart", "nanoseconds"])
def test_a_draft_makes_examples(name, tmp_path):
    made = drafted(name, tmp_path / "log")
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    manifest = json.loads((tmp_path / "examples/manifest.json").read_text())
    assert manifest["rows"]["impressions"] > 5000
    assert manifest["rows"]["rejects"] == 0


def features(made: Draft) -> dict[str, dict[str, Any]]:
    return dict(made.values["contract"]["features"])


def test_what_the_drafts_read(tmp_path):
    made = drafted("german", tmp_path / "german")
    assert made.values["pipeline"]["log"]["derive"] == {
        "Zeitpunkt": {"time_of": "Zeitpunkt", "form": "%d.%m.%Y %H:%M:%S%.f"},
        "Preis": {"number": "Preis"},
        "Klick": {"flag": "Klick", "ones": ["ja"]},
        "Kauf": {"flag": "Kauf", "ones": ["ja"]},
        "Dauer": {"number": "Dauer"},
        "hour": {"hour_of": "Zeitpunkt"},
    }
    assert "numbers with a decimal comma, such as" in made.notes["pipeline.derive"]
    assert features(made)["platz"]["kind"] == "position"

    made = drafted("american", tmp_path / "american")
    told = made.values["pipeline"]["log"]["derive"]["created"]
    assert told == {"time_of": "created", "form": "%m/%d/%Y %I:%M %p"}
    assert "if days and months are the other way round" in made.notes["pipeline.derive"]

    made = drafted("vectors", tmp_path / "vectors")
    assert features(made)["emb"] == {
        "kind": "vector",
        "side": "item",
        "size": 3,
        "missing": "indicator",
    }

    made = drafted("stars", tmp_path / "stars")
    log = made.values["pipeline"]["log"]
    assert (log["unknown_time"], log["derive"]) == (0, {"time": {"constant": "0"}})
    assert made.values["pipeline"]["split"]["by"] == "random"
    assert "no column holds times" in made.notes["pipeline.log.columns"]

    made = drafted("of lists", tmp_path / "lists")
    log = made.values["pipeline"]["log"]
    assert log["explode"] == {"columns": ["shown"]}
    assert log["derive"]["clicked"] == {"member": "shown", "of": "clicked"}
    assert features(made)["place"]["kind"] == "position"
    told = re.search(r"about (\d+) rows", made.notes["pipeline.log"])
    assert int(told[1]) == 6000

    made = drafted("words", tmp_path / "words")
    assert made.values["pipeline"]["log"]["derive"]["c"] == {"flag": "c", "ones": ["hit"]}
    assert "the rarer one of its two values" in made.notes["contract.tasks.c"]
    assert features(made)["device"]["side"] == "context"

    made = drafted("catalogue", tmp_path / "catalogue")
    assert "'clicked' is never 1" in made.left_out["visible_ms"]
    items = made.values["pipeline"]["items"]
    assert (items["key"], items["derive"]) == ("ad", {"budget": {"number": "budget"}})


def test_the_rows_of_a_log_of_requests_are_counted_from_a_part_of_it(tmp_path):
    made = drafted("of choices", tmp_path / "log")
    checked = check(made.config(), tmp_path / "log", rows=500)
    assert not checked.facts["rows"]["whole"]
    assert 4500 < checked.facts["rows"]["log"] < 7500


def test_an_event_that_follows_every_impression_is_no_task(tmp_path):
    """Such as a ping of each page: its number of seconds is one all the same."""
    lines = ["t,user,item,event,ms"]
    for row in flat():
        who = f"{row['user']},{row['item']}"
        lines.append(f"{row['at'] + 20 * row['place']},{who},view,")
        lines.append(f"{row['at'] + 20 * row['place'] + 1},{who},ping,{row['price'] * 100:.0f}")
        if row["click"]:
            lines.append(f"{row['at'] + 20 * row['place'] + 2},{who},cart,")
    (tmp_path / "log").mkdir()
    write(tmp_path / "log/log.csv", *lines)
    made = draft(tmp_path / "log", "x")
    tasks = made.values["contract"]["tasks"]
    assert "ping" not in tasks
    assert {"view", "cart", "ms"} <= set(tasks)
    assert "'ping' follows 100% of them" in made.notes["pipeline.log.impression"]


def test_a_family_of_flags_is_a_list(tmp_path):
    """Such as one for each genre."""
    folder = tmp_path / "log"
    folder.mkdir()
    german(folder)
    draw = random.Random(8)
    lines = ["film,war,love,fun,crime,home,pets"]
    for item in range(120):
        mine = draw.sample(range(6), draw.randrange(1, 3))
        lines.append(f"A{item}," + ",".join(str(int(at in mine)) for at in range(6)))
    write(folder / "films.csv", *lines)
    made = draft(folder, "x")
    flags = ["war", "love", "fun", "crime", "home", "pets"]
    items = made.values["pipeline"]["items"]
    assert items["derive"] == {"flags": {"ones_of": flags}}
    read = features(made)
    assert read["flags"] == {"kind": "id_list", "side": "item", "source": "items", "max_length": 2}
    assert not read.keys() & set(flags)
    job.run(made.config(), folder, tmp_path / "examples")
    assert "flags" in pl.read_parquet(tmp_path / "examples/train/*.parquet").columns


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["31.12.2026", "1.1.2027"], "%d.%m.%Y"),
        (["10/Oct/2026:13:55:36 -0700"], "%d/%b/%Y:%H:%M:%S %z"),
        (["Tue, 03 Mar 2026 10:00:00 +0100"], "%a, %d %b %Y %H:%M:%S %z"),
        (["20260304", "20260305"], "%Y%m%d"),
        (["Mar 3, 2026, 1:02 PM"], "%b %d, %Y, %I:%M %p"),
        (["2026-03-04 10:00:00"], None),  # ISO 8601 needs no form
        (["1,2", "3,4"], None),
        (["12", "13"], None),
    ],
)
def test_forms_of_times(values, form):
    found = respell(pl.DataFrame({"x": values * 20})).derive.get("x", {})
    assert found.get("form") == form


def iso(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"PT{minutes:.0f}M{rest:.1f}S" if minutes else f"PT{rest:.1f}S"


def clock(seconds: float) -> str:
    return f"{seconds // 3600:02.0f}:{seconds // 60 % 60:02.0f}:{seconds % 60:04.1f}"


@pytest.mark.parametrize("spell", [iso, clock])
def test_durations_are_numbers_of_seconds(spell, tmp_path):
    """As a label of those clicked, and as a feature; the log's milliseconds say nothing of them."""
    lines = ["at,request,user,item,day,length,clicked,took"]
    for row in flat():
        length, day = 600 + 47 * row["item"], f"2025-11-{1 + row['item'] % 28:02}"
        cells = [1000 * row["at"], row["request"], row["user"], f"i{row['item']}", day]
        took = "" if row["seconds"] is None else spell(round(20 * row["seconds"]))
        lines.append(",".join(map(str, [*cells, spell(length), int(row["click"]), took])))
    (tmp_path / "log").mkdir()
    write(tmp_path / "log/log.csv", *lines)
    made = draft(tmp_path / "log", "x")
    derive = made.values["pipeline"]["log"]["derive"]
    assert {name: derive[name] for name in ("length", "took")} == {
        "length": {"number": "length"},
        "took": {"number": "took"},
    }
    assert "durations, read as seconds, such as" in made.notes["pipeline.derive"]
    assert made.values["pipeline"]["log"]["columns"]["time"] == "at"
    assert made.values["pipeline"]["log"]["known_after"] == "1h"  # 2,000 seconds, and no ms
    assert features(made)["length"]["kind"] == "number"
    task = made.values["contract"]["tasks"]["took"]
    assert (task["type"], task["transform"]) == ("regression", "log1p")
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    item = rows["item"].str.strip_prefix("i").cast(pl.Int64)
    assert (rows["length"] == 600 + 47 * item).all()
    taken = sorted(round(20 * row["seconds"]) for row in flat() if row["seconds"] is not None)
    assert set(rows["label/took"].drop_nulls()) <= set(taken)
    assert rows["label/took"].max() > 1900


@pytest.mark.parametrize(
    ("nothing", "odd", "empty"),
    [
        ("", "", None),
        ("-", "-", ["-"]),
        ("", "N/A", ["n/a"]),
        ("0", "", None),
        ("PT0S", "1:75", ["1:75"]),
        ("null", "soon", ["null", "soon"]),
    ],
)
def test_some_odd_values_leave_durations_durations(nothing, odd, empty, tmp_path):
    """How long was read is known only afterwards: else the draft would take it for a feature."""
    lines, reads = ["at,request,user,item,clicked,took"], 0
    for row in flat():
        took = nothing
        if row["seconds"] is not None:
            reads += 1
            took = odd if reads in (7, 90) else iso(round(20 * row["seconds"]))
        cells = [row["at"], row["request"], row["user"], f"i{row['item']}", int(row["click"])]
        lines.append(",".join(map(str, [*cells, took])))
    (tmp_path / "log").mkdir()
    write(tmp_path / "log/log.csv", *lines)
    made = draft(tmp_path / "log", "x")
    rule = {"number": "took"} | ({} if empty is None else {"empty": empty})
    assert made.values["pipeline"]["log"]["derive"]["took"] == rule
    assert "took" not in features(made)
    assert made.values["contract"]["tasks"]["took"]["label"]["column"] == "took"
    if empty is not None:
        count = 2 if nothing in ("", "PT0S") else len(flat()) - reads + 2
        said = f"{count} of {len(flat())} rows have {', '.join(map(repr, empty))} instead"
        assert said in made.notes["pipeline.derive"]
    found = check(made.config(), tmp_path / "log")
    assert found.facts["rows"]["rejected"] == 0
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    assert rows["label/took"].max() > 1900


def test_marks_for_no_number():
    frame = {
        "price": ["12.125", "-", "7.5", "3"] * 20,
        "stars": ["1", "N/A", "5", ""] * 20,
        "cost": ["€ 1.50", "--", *(f"€ {at}.25" for at in range(18))] * 4,
        "size": ["38", "40", "S", "M"] * 20,
        "who": ["anna", "-", "ben", "NULL"] * 20,
    }
    found = respell(pl.DataFrame(frame))
    assert found.derive == {
        "price": {"coalesce": ["price"], "empty": ["-"]},
        "stars": {"coalesce": ["stars"], "empty": ["n/a"]},
        "cost": {"number": "cost", "empty": ["--"]},
    }
    assert found.frame["price"].head(4).to_list() == ["12.125", None, "7.5", "3"]
    assert found.reasons["price"] == "numbers; 20 of 80 rows have '-' instead, taken for none"


@pytest.mark.parametrize(
    ("texts", "are_durations"),
    [
        ([f"{at % 24:02}:{at * 7 % 60:02}" for at in range(200)], False),  # of a whole day
        ([f"{9 + at % 14}:{at * 7 % 60:02}" for at in range(200)], False),  # 9:07 to 22:..
        ([f"{7 + at % 5:02}:{at % 4 * 15:02}" for at in range(200)], False),  # opens at 07:30
        ([f"{at % 24:02}:{at * 7 % 60:02}:{at % 60:02}" for at in range(200)], False),
        ([f"{at * at % 13:02}:{at * 7 % 60:02}" for at in range(200)], True),  # of songs
        ([f"{at % 45}:{at * 7 % 60:02}" for at in range(200)], True),
        ([f"0{at % 2}:{at * 7 % 60:02}:{at % 60:02}" for at in range(200)], True),
    ],
)
def test_times_of_day_are_no_durations(texts, are_durations):
    assert (respell(pl.DataFrame({"x": texts})).seconds == {"x"}) == are_durations


def test_what_may_be_minutes_and_seconds_is_told_and_read_so_by_the_rule(tmp_path):
    """Lengths that are all round and between 5:00 and 23:55 have the values of opening hours."""
    lines = ["at,request,user,item,length,clicked"]
    for row in flat():
        seconds = 300 + 5 * (row["item"] * 37 % 228)
        length = f"{seconds // 60}:{seconds % 60 // 5 * 5:02}"
        cells = [row["at"], row["request"], row["user"], f"i{row['item']}", length]
        lines.append(",".join(map(str, [*cells, int(row["click"])])))
    (tmp_path / "log").mkdir()
    write(tmp_path / "log/log.csv", *lines)
    made = draft(tmp_path / "log", "x")
    assert features(made)["length"]["kind"] == "id"
    told = made.notes["contract.features.length"]
    assert told.endswith("then derive {length: {number: length}} reads seconds")
    made.values["pipeline"]["log"]["derive"]["length"] = {"number": "length"}
    del made.values["contract"]["rates"]  # one of them is by the category of the length
    made.values["contract"]["features"]["length"] = {"kind": "number", "side": "item"}
    job.run(made.config(), tmp_path / "log", tmp_path / "examples")
    rows = pl.read_parquet(tmp_path / "examples/train/*.parquet")
    item = rows["item"].str.strip_prefix("i").cast(pl.Int64)
    assert (rows["length"] == 300 + 5 * (item * 37 % 228)).all()


def test_durations_are_told_from_names_and_times_of_day():
    parquet = [timedelta(seconds=7.5 * at) for at in range(40)]
    odd = {
        "ratio": ["16:09", "4:03", "21:09", "1:01"] * 10,  # few
        "result": [f"{at}:{at % 7}" for at in range(40)],
        "some": ["live", *(f"{at}:30" for at in range(39))],
        "took": [f"{at}:30" for at in range(40)],
        "typed": parquet,
    }
    found = respell(pl.DataFrame(odd))
    assert found.derive == {"took": {"number": "took"}, "typed": {"number": "typed"}}
    assert found.seconds == {"took", "typed"}
    assert found.frame["took"].head(2).to_list() == ["30", "90"]
    assert found.frame["typed"].head(2).to_list() == ["0", "7.5"]
    assert "as minutes and seconds" in found.reasons["took"]
    days = [f"2026-01-{1 + at % 28:02}" for at in range(40)]
    late = [f"{at % 24:02}:15:00" for at in range(40)]
    assert respell(pl.DataFrame({"day": days, "at": late})).derive["time"]["join"] == ["day", "at"]
    short = [f"00:{at:02}:15" for at in range(40)]
    assert respell(pl.DataFrame({"day": days, "took": short})).seconds == {"took"}


def test_lists_of_two_ids_are_no_decimal_numbers():
    frame = pl.DataFrame({"x": ["1,2,3", "4,5", "6"] * 30, "y": ["1,5", "2", "3,25"] * 30})
    assert respell(frame).derive == {"y": {"number": "y"}}


def test_a_measure_is_told_from_an_id():
    draw = random.Random(0)
    sizes = pl.Series("x", [round(2.718 ** draw.gauss(4, 0.5)) for _ in range(20_000)])
    ids = pl.Series("x", [int(draw.random() ** 3 * 300) * 7919 % 1000 for _ in range(20_000)])
    assert is_measure(look("x", sizes))
    assert not is_measure(look("x", ids))


def test_a_vector_is_told_from_a_list_of_ids():
    assert vector_size(look("x", pl.Series([[0.5, 1.0]] * 9))) == 2
    assert vector_size(look("x", pl.Series([["0.5", "1.0"]] * 9))) == 2  # of JSON
    assert vector_size(look("x", pl.Series([["3", "5"]] * 9))) == 0
    assert vector_size(look("x", pl.Series([[0.5], [1.0, 2.0]] * 9))) == 0


def test_an_array_of_json_is_no_table(tmp_path):
    rows = [{"t": START + at, "user": at % 9, "item": at % 30} for at in range(200)]
    write(tmp_path / "log.json", json.dumps(rows, indent=2))
    with pytest.raises(DataError, match=r"no table here; .*; log.json: write one object a line"):
        draft(tmp_path, "x")


@pytest.mark.parametrize(
    ("spell", "read"),
    [
        (lambda n: f"€ {n:,.2f}", lambda n: round(n, 2)),
        (lambda n: f"{n:.2f} EUR", lambda n: round(n, 2)),
        (lambda n: f"{n:.1f}kg".replace(".", ","), lambda n: round(n, 1)),
        (lambda n: f"{int(n)}%", int),
        (lambda n: f"EUR {n:.2f}" if n > 900 else f"USD {n:.2f}", None),  # two units: no numbers
        (lambda n: f"x{int(n)}", None),  # an id
        (lambda n: f"{n:.3f} t" if n > 900 else f"{n:.2f} t", None),  # 1.234 may be 1234
    ],
)
def test_numbers_with_a_unit(spell, read):
    draw = random.Random(3)
    numbers = [draw.uniform(1, 2000) for _ in range(300)]
    found = respell(pl.DataFrame({"price": [spell(n) for n in numbers]}))
    if read is None:
        assert found.derive == {}
    else:
        assert found.derive == {"price": {"number": "price"}}
        values = found.frame["price"].cast(pl.Float64).to_list()
        assert values == pytest.approx([read(n) for n in numbers])


@pytest.mark.parametrize(
    ("spell", "decimal", "read"),
    [
        (lambda n: f"{n:.3f} kg", None, lambda n: round(n, 3)),
        (lambda n: f"{n:.3f}".replace(".", ","), None, lambda n: round(n, 3)),
        (lambda n: f"${int(n):,}", ".", int),
        (lambda n: f"{int(n):,}", ".", int),
        (lambda n: f"{int(n):,} kg".replace(",", "."), ",", int),
        (lambda n: f"{1000 * n:,.0f} kg", ".", lambda n: round(1000 * n)),
    ],
)
def test_three_digits_are_thousands_only_where_other_texts_say_so(spell, decimal, read):
    draw = random.Random(3)
    numbers = [draw.uniform(1, 2000) for _ in range(300)]
    found = respell(pl.DataFrame({"price": [spell(n) for n in numbers]}))
    mark = {} if decimal is None else {"decimal": decimal}
    assert found.derive == {"price": {"number": "price"} | mark}
    values = found.frame["price"].cast(pl.Float64).to_list()
    assert values == pytest.approx([read(n) for n in numbers])


def test_a_decimal_comma_is_called_so_beside_thousands():
    texts = ["1.234", "12,5", "841", "999,25"] * 5
    found = respell(pl.DataFrame({"price": texts}))
    assert found.derive == {"price": {"number": "price", "decimal": ","}}
    assert found.reasons["price"] == "numbers with a decimal comma, such as '12,5'"


def test_of_many_small_files_all_are_read(tmp_path):
    for day in range(60):
        rows = pl.DataFrame({"at": [day, day], "x": ["a", "b"]})
        rows.write_ndjson(tmp_path / f"part-{day}.jsonl")
    [table] = find_tables(tmp_path, 1000)
    assert len(table.frame) == table.rows == 120


@pytest.mark.parametrize(
    ("first", "names"),
    [
        (range(1, 50), ("row", "when", "who")),  # as R writes tables: no name for the rows' names
        (range(7, 300, 6), ("column_1", "column_2", "column_3")),  # a name is missing somewhere
    ],
)
def test_a_header_with_a_name_less_than_cells(first, names, tmp_path):
    lines = ['"when","who"', *(f'"{at}",{at + 10},"u{at % 5}"' for at in first)]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    [table] = find_tables(tmp_path, 1000)
    assert table.columns == names
    assert len(table.frame) == 49
