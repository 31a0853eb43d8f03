"""An independent labeller: plain loops over events, written from docs/labels.md alone.

It shares no code with the job: it reads the raw files with csv and json of the standard library,
and takes from the configuration only what the user wrote. It is slow, for tests. Where the page
leaves a choice to a hash, `order` makes it: of equals, the row with the lowest rank counts.
"""

import bisect
import csv
import fnmatch
import gzip
import io
import json
import math
import zipfile
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction

MICROSECOND = timedelta(microseconds=1)
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def micros(value):
    """A duration or an instant in microseconds; a missing one stays missing."""
    if value is None:
        return None
    return (value - EPOCH if isinstance(value, datetime) else value) // MICROSECOND


# Reading -----------------------------------------------------------------------------------------


def texts(folder, pattern):
    """The decoded content of each file and of each member of a zip that a pattern names."""
    pattern, _, member = pattern.partition("#")
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or not fnmatch.fnmatch(str(path.relative_to(folder)), pattern):
            continue
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                for name in sorted(archive.namelist()):
                    if not member or name == member:
                        yield archive.read(name).decode()
        else:
            content = path.read_bytes()
            yield (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def read(folder, part):
    """The rows of the files of a log, or of its `feedback`, as dicts; missing values are None."""
    rows = []
    for pattern in part.files:
        for text in texts(folder, pattern):
            if part.format.type == "jsonl":
                rows += [json.loads(line) for line in text.splitlines() if line.strip()]
                continue
            header = part.format.header
            delimiter = part.format.delimiter
            rows += csv.DictReader(io.StringIO(text, newline=""), header, delimiter=delimiter)
    missing = ("", *part.format.null_values)
    return [{k: None if v is None or v in missing else v for k, v in r.items()} for r in rows]


def instant(value, unit):
    """A time of the log in microseconds since 1970."""
    if value is None:
        return None
    if unit == "iso":
        return micros(datetime.fromisoformat(value))
    return int(Decimal(str(value)) * UNITS[unit])


def number(value):
    """A number of the log."""
    return None if value is None else float(value)


def text_of(value):
    """An id of the log as text."""
    return None if value is None else str(value)


def columns_read(config, columns):
    """The names of the columns that the configuration reads."""
    names = {name for name in dict(columns).values() if name is not None}
    for name, feature in config.contract.features.items():
        computed = [getattr(feature, key, None) for key in ("history", "count", "since", "rate")]
        if feature.source == "log" and not any(computed) and label_rule(feature) is None:
            names.add(feature.column or name)
        for what in filter(None, computed):
            if config.pipeline.log.shape == "impressions":
                names |= set(what.events) | set(getattr(what, "per", ()))
    for task in config.contract.tasks.values():
        names |= {getattr(task.label, key, None) for key in ("column", "over")}
    if config.pipeline.log.shape == "impressions":
        names |= set(config.pipeline.log.known_at.values())
    return names - {None, "impression"}


def label_rule(feature):
    """What a feature over past labels says; None of another feature."""
    keys = ("label_count", "label_rate", "label_mean")
    found = [getattr(feature, key, None) for key in keys]
    return next(filter(None, found), None)


def read_events(config, folder):
    """All rows of the log as dicts of one shape, in the order of the files."""
    log = config.pipeline.log
    parts = [(log, log.columns)]
    feedback = getattr(log, "feedback", None)
    if feedback is not None:
        parts.append((feedback, feedback.columns))
    events = []
    for place, (part, columns) in enumerate(parts):
        used = sorted(columns_read(config, columns))
        for row in read(folder, part):
            kind = getattr(columns, "event", None)
            event = {
                "time": instant(row[columns.time], part.time_unit),
                "user": text_of(row[columns.user]),
                "item": text_of(row[columns.item]),
                # Without types, every row is an impression.
                "kind": row[kind] if kind else getattr(log, "impression", "impression"),
                "row": row,
                "place": place,
                "index": len(events),
                "identity": tuple(text_of(row.get(name)) for name in used),
            }
            for name in ("value", "session", "request", "event_id"):
                column = getattr(columns, name, None)
                event[name] = row.get(column) if column else None
            event["value"] = number(event["value"])
            events.append(event)
    return events


# The steps before the rules ----------------------------------------------------------------------


def without_duplicates(events, order):
    """Leave out what is the same event as an earlier one."""
    kept, seen = [], set()
    for event in sorted(events, key=lambda e: (e["time"], order(e))):
        if event["event_id"] is not None:
            key = ("id", event["place"], event["user"], event["event_id"])
        else:
            key = ("row", event["place"], event["identity"])
        if key not in seen:
            seen.add(key)
            kept.append(event)
    return kept


def mark_repetitions(impressions, collapse, order):
    """Say of each impression which kept impression it stands for: itself or a chain's first."""
    last = {}  # pair -> its previous impression, kept or not
    for event in sorted(impressions, key=lambda e: (e["time"], order(e))):
        pair = event["user"], event["item"]
        before = last.get(pair)
        repeats = (
            collapse is not None
            and before is not None
            and event["time"] - before["time"] <= collapse
        )
        event["kept"] = before["kept"] if repeats else event
        last[pair] = event


def attribute(impressions, feedback, pipeline, order):
    """Give each feedback event to an impression: sets `of`, `delay` and `lost`."""
    limit, skew = micros(pipeline.attribution), micros(pipeline.clock_skew)
    of_pair = defaultdict(list)
    for event in impressions:
        of_pair[event["user"], event["item"]].append(event)
    for event in feedback:
        candidates = of_pair[event["user"], event["item"]]
        if pipeline.attribute_by == "request" and event["request"] is not None:
            candidates = [c for c in candidates if c["request"] == event["request"]]
        event["of"], event["lost"] = None, "orphans"
        earlier = [c for c in candidates if c["time"] <= event["time"]]
        if earlier:
            latest = max(c["time"] for c in earlier)
            found = min((c for c in earlier if c["time"] == latest), key=order)["kept"]
            delay = event["time"] - found["time"]
            if limit is None or delay <= limit:
                event.update(of=found, delay=delay, lost=None)
                continue
            event["lost"] = "late"
        if skew is None:
            continue
        # A repetition stands for its kept impression here as well: the feedback takes the time of
        # the one that follows it, and its delay counts from the kept one.
        later = [c for c in candidates if c["time"] > event["time"]]
        if later:
            first = min(c["time"] for c in later)
            found = min((c for c in later if c["time"] == first), key=order)["kept"]
            delay = first - found["time"]
            if first - event["time"] <= skew and (limit is None or delay <= limit):
                event.update(of=found, delay=delay, lost=None, time=first)


# Rules -------------------------------------------------------------------------------------------


def event_label(rule, feedback):
    """A label of the rule `event`, from the feedback that belongs to the impression."""
    limit = micros(rule.within)
    found = [e for e in feedback if e["kind"] in rule.events]
    found = [e for e in found if limit is None or e["delay"] <= limit]
    if rule.aggregate == "presence":
        return 1.0 if found else 0.0
    if rule.aggregate == "count":
        return float(len(found))
    values = []
    for event in found:
        value = event["value"]
        if rule.over is not None and value is not None:
            divisor = number(event["row"].get(rule.over))
            value = value / divisor if divisor is not None and divisor > 0 else None
        if value is not None:
            values.append(value)
    if not values:
        return None
    return sum(values) if rule.aggregate == "sum" else max(values)


def dwell_wait(rule):
    """The `within` of a dwell, in microseconds."""
    return micros(rule.within or max(rule.cap, timedelta(days=1)))


def dwell_label(rule, impression, session):
    """A label of the rule `dwell`, from the events of the impression's session in order of time."""
    for event in session:
        waited = event["time"] - impression["time"]
        if waited <= 0:
            continue
        if waited > dwell_wait(rule):
            return None
        same = event["item"] == impression["item"]
        if same and event.get("kept", event) is not event:
            continue
        if rule.ends == "other_item":
            ends = not same
        else:
            ends = rule.ends == "any" or event["kind"] in rule.ends
        if ends:
            return min(waited, micros(rule.cap)) / 1_000_000
    return None


def row_label(rule, row, time, log):
    """A label of the rules `column` and `ratio`."""
    for column in [rule.column] + ([rule.over] if rule.rule == "ratio" else []):
        if column in log.known_at and log.known_after is not None and time is not None:
            known = instant(row.get(log.known_at[column]), log.time_unit)
            if known is not None and known - time > micros(log.known_after):
                return None
    value = number(row.get(rule.column))
    if rule.rule == "column":
        return value
    divisor = number(row.get(rule.over))
    if value is None or divisor is None or divisor <= 0:
        return None
    return value / divisor


def transformed(task, label):
    """A label on the scale that models are trained on."""
    return math.log1p(max(label, 0)) if task.transform == "log1p" else label


def finish(tasks, values):
    """The steps after the rule: from each task's value to its label."""
    labels = {}

    def label(name):
        if name in labels:
            return labels[name]
        task, value = tasks[name], values[name]
        if value is not None:
            if task.clip is not None:
                value = min(max(value, task.clip[0]), task.clip[1])
            if task.at_least is not None:
                value = 1.0 if value >= task.at_least else 0.0
            elif task.type == "binary":
                value = 1.0 if value > 0 else 0.0
            if task.without is not None and label(task.without) == 1:
                value = 0.0
        if task.when is not None and label(task.when) != 1:
            value = None
        labels[name] = value
        return value

    return {name: label(name) for name in tasks}


def waits(config):
    """How long each task's label stays open, in microseconds, references included."""
    log, tasks = config.pipeline.log, config.contract.tasks

    def own(rule):
        if rule.rule == "event":
            limits = [micros(x) for x in (rule.within, config.pipeline.attribution)]
            limits = [x for x in limits if x is not None]
            # Without a limit it never closes; hold-back takes it as if it closed at once. Embargo
            # and runs of some days refuse it.
            return min(limits, default=0)
        if rule.rule == "dwell":
            return dwell_wait(rule)
        if rule.rule in ("column", "ratio"):
            return micros(log.known_after) or 0
        return 0

    def wait(name):
        task = tasks[name]
        others = [x for x in (task.without, task.when) if x is not None]
        return max([own(task.label), *map(wait, others)])

    return {name: wait(name) for name in tasks}


# Histories and counters --------------------------------------------------------------------------


class Past:
    """What is known of users and items over time."""

    def __init__(self, config, impressions, feedback):
        self.log = config.pipeline.log
        self.impressions = impressions
        self.feedback = feedback
        features = self.columns = config.contract.features
        self.whole = features[config.contract.item].dtype == "int"
        self.tables = {}
        self.outcomes, self.all_outcomes, self.priors = {}, None, {}

    def known(self, kinds):
        """(time, user, item) of what counts as an event of these types."""
        if self.log.shape == "events":
            everything = [*self.impressions, *self.feedback]
            return [(e["time"], e["user"], e["item"]) for e in everything if e["kind"] in kinds]
        found = []
        for event in self.impressions:
            times = []
            for kind in kinds:
                if kind == "impression":
                    times.append(event["time"])
                    continue
                value = number(event["row"].get(kind))
                if value is None or not value > 0:
                    continue
                if kind in self.log.known_at:
                    at = instant(event["row"].get(self.log.known_at[kind]), self.log.time_unit)
                    if at is not None:
                        times.append(max(at, event["time"]))
                else:
                    times.append(event["time"] + micros(self.log.known_after))
            if times:
                found.append((min(times), event["user"], event["item"]))
        return found

    def before(self, of, kinds, who, time, within):
        """(time, item) of the events of a user or an item in [time - within, time)."""
        key = of, tuple(kinds)
        if key not in self.tables:
            table = defaultdict(list)
            for at, user, item in self.known(kinds):
                place = int(item) if self.whole else item
                table[user if of == "user" else item].append((at, place))
            for events in table.values():
                events.sort()
            self.tables[key] = table
        events = self.tables[key].get(who, [])
        end = bisect.bisect_left(events, time, key=lambda e: e[0])
        start = 0
        if within is not None:
            start = bisect.bisect_left(events, time - micros(within), key=lambda e: e[0])
        return events[start:end]

    def feature(self, feature, user, item, time, row):
        """The value of a history or counter at a time; `row` holds the candidate's columns."""
        if getattr(feature, "history", None) is not None:
            what = feature.history
            items = [i for _, i in self.before("user", what.events, user, time, what.within)]
            return [str(i) for i in items[-what.last :][-feature.max_length :]]
        what = label_rule(feature)
        if what is not None:
            who = item if what.of == "item" else user
            category = what.category and row.get(self.column(what.category))
            return self.of_labels(feature, what, who, time, category)
        what = feature.counter
        who = user if what.of == "user" else item
        events = self.before(what.of, what.events, who, time, what.within)
        if feature.count is not None:
            return float(len(events))
        if feature.since is not None:
            if not events:
                return None
            return (time - events[-1 if what.which == "last" else 0][0]) / 1_000_000
        per = self.before(what.of, what.per, who, time, what.within)
        return len(events) / len(per) if per else None

    def of_labels(self, feature, what, who, time, category):
        """A count, rate or mean of the labels that had closed at a time, one label at a time."""
        if (what.of, what.task) not in self.outcomes:
            table = defaultdict(list)
            for outcome in self.all_outcomes(what.task):
                table[outcome["item" if what.of == "item" else "user"]].append(outcome)
            self.outcomes[what.of, what.task] = table
        closed = [e for e in self.outcomes[what.of, what.task].get(who, []) if e["closes"] < time]
        if what.category is not None:
            latest = {}
            for each in closed:
                of = each["row"].get(self.column(what.category))
                latest[of] = max(each["time"], latest.get(of, each["time"]))
            latest.pop(None, None)
            kept = sorted(latest, key=lambda of: (latest[of], of))[-(what.last or 50) :]
            mine = category if category in kept else object()
            closed = [e for e in closed if e["row"].get(self.column(what.category)) == mine]
        total, labels = 0, 0
        for each in closed:
            recent = what.within is None or each["closes"] >= time - micros(what.within)
            if recent and each["label"] is not None:
                labels += 1
                total += Fraction(each["label"])
        if feature.label_count is not None:
            return float(labels)
        prior = self.priors[what.task] if what.prior is None else what.prior
        return float(total + what.strength * prior) / (labels + what.strength)

    def column(self, name):
        """The column of the log that holds a feature."""
        return self.columns[name].column or name


def computed(config):
    """The features that are computed over time."""
    return {
        name: feature
        for name, feature in config.contract.features.items()
        if getattr(feature, "history", None) or getattr(feature, "counter", None)
    }


# Sampled negatives -------------------------------------------------------------------------------


class Candidates:
    """Which items could be drawn for a positive; positives are asked for in order of time."""

    def __init__(self, config, past):
        self.rule, self.past = config.pipeline.negatives, past
        features, item = config.contract.features, config.contract.item
        self.lists = [n for n, f in features.items() if getattr(f, "share", None) == item]
        shown = sorted((e["time"], e["item"]) for e in past.impressions)
        self.coming, self.going = iter([*shown, None]), iter([*shown, None])
        self.next, self.oldest = next(self.coming), next(self.going)
        self.shown = Counter()
        self.touched = defaultdict(list)
        for event in sorted([*past.impressions, *past.feedback], key=lambda e: e["time"]):
            self.touched[event["user"]].append((event["time"], event["item"]))

    def move(self, time):
        """Let `shown` hold the items that the log had shown in [time - recent, time)."""
        while self.next is not None and self.next[0] < time:
            self.shown[self.next[1]] += 1
            self.next = next(self.coming)
        recent = micros(self.rule.recent)
        while recent is not None and self.oldest is not None and self.oldest[0] < time - recent:
            self.shown[self.oldest[1]] -= 1
            if not self.shown[self.oldest[1]]:
                del self.shown[self.oldest[1]]
            self.oldest = next(self.going)

    def of(self, event, features):
        """The items that may stand for a positive, and whether the log had shown its own."""
        self.move(event["time"])
        lists = [Counter(features[name]) for name in self.lists]
        own = tuple(found[event["item"]] for found in lists)
        listed = set().union(*lists)
        if any(own):
            items = {i for i in listed if tuple(found[i] for found in lists) == own}
            items = {i for i in items if i in self.shown} - {event["item"]}
        else:
            since = micros(self.rule.exclude_within)
            touched = set()
            for time, item in self.touched[event["user"]]:
                if time > event["time"] and self.rule.exclude == "past":
                    break
                if since is None or time >= event["time"] - since:
                    touched.add(item)
            items = set(self.shown) - touched - listed - {event["item"]}
        return items, event["item"] in self.shown


# All of it ---------------------------------------------------------------------------------------


class Labelled:
    """The result: `rows` that are examples, `counts`, and what tests of negatives need."""

    def __init__(self, config, folder, *, order=None, starts=None, span=None, priors=()):
        """Label the log in a folder.

        Args:
            config: the configuration.
            folder: holds the log.
            order: the rank of an event among equals; by place in the files where absent.
            starts: when validation and test begin, in microseconds; of the configuration where
                absent. Needed for splits by shares.
            span: the first and the last instant of a run of some days, in microseconds.
            priors: by task, the mean of its labels in the training split, for features over past
                labels; `means` are those of the rows that came out.
        """
        self.config, pipeline = config, config.pipeline
        order = order or (lambda event: event["index"])
        events = read_events(config, folder)
        self.counts = Counter(rows_in=len(events))
        cut_off = span[1] if span else micros(pipeline.cut_off)
        if cut_off is None:
            cut_off = max(e["time"] for e in events) + 1
        self.cut_off, self.span = cut_off, span
        whole = [e for e in events if e["time"] < cut_off]
        self.counts["after_cut_off"] = len(events) - len(whole)
        kept = without_duplicates(whole, order)
        self.counts["duplicates"] = len(whole) - len(kept)
        kind = getattr(pipeline.log, "impression", "impression")
        impressions = [e for e in kept if e["place"] == 0 and e["kind"] == kind]
        feedback = [e for e in kept if not (e["place"] == 0 and e["kind"] == kind)]
        mark_repetitions(impressions, micros(pipeline.collapse), order)
        self.impressions = [e for e in impressions if e["kept"] is e]
        self.counts["collapsed"] = len(impressions) - len(self.impressions)
        attribute(impressions, feedback, pipeline, order)
        self.owned = defaultdict(list)
        for event in feedback:
            self.counts[event["lost"] or "feedback"] += 1
            if event["of"] is not None:
                self.owned[event["of"]["index"]].append(event)
        self.sessions = defaultdict(list)
        for event in [*impressions, *feedback]:
            if event["session"] is not None:
                self.sessions[event["user"], event["session"]].append(event)
        for session in self.sessions.values():
            session.sort(key=lambda e: e["time"])
        self.feedback = feedback
        self.past = Past(config, self.impressions, feedback)
        self.waits = waits(config)
        self.past.all_outcomes, self.past.priors = self.all_outcomes, dict(priors)
        split = pipeline.split
        if starts is None and split.by == "time" and isinstance(split.validation, datetime):
            starts = micros(split.validation), micros(split.test)
        self.starts = starts
        self.open, self.embargoed = Counter(), defaultdict(Counter)
        if pipeline.negatives is not None:
            self.find_candidates()
        self.rows = [row for e in self.impressions if (row := self.example(e)) is not None]

    def all_outcomes(self, task):
        """Each impression with `label`, after its transform, and when it `closes`.

        Whatever the run masks; null where the rule finds nothing, or where nobody ever knew it.
        """
        found = []
        for event in self.impressions:
            label = self.labels(event)[task] if self.known(task, event) else None
            if label is not None:
                label = transformed(self.config.contract.tasks[task], label)
            found.append({**event, "closes": event["time"] + self.waits[task], "label": label})
        return found

    def known(self, name, event):
        """Whether anybody ever knew what a label is made of: its columns above 0 have a time."""
        task, log = self.config.contract.tasks[name], self.config.pipeline.log
        for column in (getattr(task.label, "column", None), getattr(task.label, "over", None)):
            if log.shape == "impressions" and column in log.known_at:
                value = number(event["row"].get(column))
                at = event["row"].get(log.known_at[column])
                if value is not None and value > 0 and at is None:
                    return False
        return all(self.known(n, event) for n in (task.without, task.when) if n is not None)

    def labels(self, event):
        """The labels of a kept impression, without any mask of the run."""
        tasks = self.config.contract.tasks
        return finish(tasks, {name: self.value(task, event) for name, task in tasks.items()})

    def means(self):
        """By task, the mean of the training split's labels after the transform."""
        found = {}
        for name, task in self.config.contract.tasks.items():
            labels = [r["labels"][name] for r in self.rows if r["split"] == "train"]
            labels = [transformed(task, label) for label in labels if label is not None]
            found[name] = sum(labels) / len(labels) if labels else 0.0
        return found

    def find_candidates(self):
        """Find each positive's possible negatives, and positives that can have none."""
        rule = self.config.pipeline.negatives
        candidates = Candidates(self.config, self.past)
        for event in sorted(self.impressions, key=lambda e: e["time"]):
            items, shown = candidates.of(event, self.features(event, event["item"]))
            few = len(items) < rule.per_positive
            event["candidates"] = set() if few else items
            event["unmatched"] = rule.unmatched == "mask" and (few or not shown)

    def value(self, task, event):
        """What a task's rule says of a logged impression."""
        rule = task.label
        if rule.rule == "impression":
            return 1.0
        if rule.rule == "event":
            return event_label(rule, self.owned[event["index"]])
        if rule.rule == "dwell":
            if event["session"] is None:
                return None
            return dwell_label(rule, event, self.sessions[event["user"], event["session"]])
        return row_label(rule, event["row"], event["time"], self.config.pipeline.log)

    def closed(self, task, time, instant):
        """Whether a task's label of an impression is closed as of an instant."""
        return time + self.waits[task] < instant

    def masks(self, time):
        """Why a row is left out (or None), its split, and the tasks that are open and embargoed."""
        tasks = list(self.config.contract.tasks)
        opened, elsewhere = set(), set()
        if self.config.pipeline.hold_back:
            opened = {name for name in tasks if not self.closed(name, time, self.cut_off)}
            if self.span:
                elsewhere = {name for name in tasks if self.closed(name, time, self.span[0])}
        elif self.span and time < self.span[0]:
            return "outside", None, set(), set(), set()
        if len(opened) == len(tasks):
            return "held_back", None, opened, elsewhere, set()
        if len(opened | elsewhere) == len(tasks):
            return "outside", None, opened, elsewhere, set()
        split, embargoed = None, set()
        if self.starts is not None:
            validation, test = self.starts
            split = "train" if time < validation else "validation" if time < test else "test"
            if split != "test" and self.config.pipeline.split.embargo:
                end = validation if split == "train" else test
                embargoed = {name for name in tasks if not self.closed(name, time, end)}
        out = "embargoed" if len(embargoed) == len(tasks) else None
        return out, split, opened, elsewhere, embargoed

    def example(self, event):
        """The example of a kept impression; None where it is left out."""
        tasks = self.config.contract.tasks
        out, split, opened, elsewhere, embargoed = self.masks(event["time"])
        if out in ("held_back", "outside"):
            self.counts[out] += 1
            return None
        self.counts["impressions"] += 1
        labels = self.labels(event)
        self.open.update(opened)
        labels = {n: None if n in opened | elsewhere else v for n, v in labels.items()}
        self.embargoed[split].update(n for n in embargoed if labels[n] is not None)
        labels = {n: None if n in embargoed else v for n, v in labels.items()}
        if event.get("unmatched"):
            told = {n for n, task in tasks.items() if task.label.rule == "impression"}
            labels = {n: None if n in told else v for n, v in labels.items()}
        if out is not None:
            self.counts[out] += 1
            return None
        return {
            "event": event,
            "split": split,
            "labels": labels,
            "features": self.features(event, event["item"]),
        }

    def features(self, event, item, side=None):
        """Histories and counters of an impression (of one side), with the item that is given."""
        return {
            name: self.past.feature(feature, event["user"], item, event["time"], event["row"])
            for name, feature in computed(self.config).items()
            if side is None or feature.side == side
        }

    def negative(self, time):
        """The labels of a sampled negative of a positive at a time."""
        tasks = self.config.contract.tasks
        rules = {n: 0.0 if t.label.rule == "impression" else None for n, t in tasks.items()}
        labels = finish(tasks, rules)
        _, _, opened, elsewhere, embargoed = self.masks(time)
        gone = opened | elsewhere | embargoed
        return {name: None if name in gone else value for name, value in labels.items()}
