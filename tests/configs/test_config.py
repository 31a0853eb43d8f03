"""Configuration: what is accepted, what is refused, and what the refusal says."""

import json
from pathlib import Path

import pytest
import yaml

from multigate.configs import PRESETS, ConfigError, load
from multigate.configs.config import Config, parse_stored
from multigate.configs.sections.base import parse, read_yaml

PRESET_FILES = Path(__file__).parents[2] / "configs/presets"


def preset(name: str = "deskdrop") -> dict:
    return yaml.safe_load((PRESET_FILES / f"{name}.yaml").read_text())


def refusal(values: dict) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(Config, values, "x.yaml")
    return str(caught.value)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load_and_survive_json(name):
    config = load(name)
    assert config.name == name
    assert parse(Config, json.loads(config.model_dump_json()), "copy") == config


def test_every_yaml_in_configs_is_a_preset():
    assert sorted(path.stem for path in PRESET_FILES.glob("*.yaml")) == sorted(PRESETS)


def test_unknown_key_names_file_key_known_keys_and_value():
    values = preset()
    values["pipeline"]["negatives"]["per_positiv"] = 4
    assert refusal(values) == (
        "x.yaml: pipeline.negatives.per_positiv: unknown key; did you mean 'per_positive'? "
        "expected one of exclude, exclude_within, per_positive, recent, sampling, unmatched; "
        "received 4"
    )


def test_wrong_type_names_expectation_and_value():
    values = preset()
    values["train"]["epochs"] = "twelve"
    assert refusal(values) == (
        "x.yaml: train.epochs: input should be a valid integer; received 'twelve'"
    )


def test_nothing_is_converted_silently():
    values = preset()
    values["train"]["epochs"] = "12"
    assert "train.epochs" in refusal(values)


def test_every_offending_key_has_its_line():
    values = preset()
    values["train"]["epochs"] = 0
    del values["name"]
    lines = refusal(values).splitlines()
    assert lines == [
        "x.yaml: name: required key is missing",
        "x.yaml: train.epochs: input should be greater than or equal to 1; received 0",
    ]


def test_numbers_with_an_exponent_need_no_point(tmp_path):
    path = tmp_path / "numbers.yaml"
    path.write_text("[1e-6, 3E4, -2e+3, 1.5e-3, 1e, e5, 0x1e5]")
    assert read_yaml(path) == [1e-6, 3e4, -2e3, 1.5e-3, "1e", "e5", 0x1E5]


def test_a_key_written_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("name: a\nname: b\n")
    with pytest.raises(ConfigError, match=r"twice\.yaml: .*key 'name' is written twice.*line 2"):
        load(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [", "not valid YAML"),
        ("a: {b: 2026-02-30}", "not valid YAML: '2026-02-30': day is out of .* line 1, column 8"),
        ("[a]: 1", r"not valid YAML: expected a plain key, received \['a'\] .* line 1, column 1"),
        ("a: &own [*own]", r"an alias \(\*name\) stands within its own anchor .* line 1, column 4"),
        ("a: &own {b: [1, *own]}", r"within its own anchor \(&name\) .* line 1, column 4"),
        ("- 1\n", "expected a mapping of keys, received list"),
        ("", "expected a mapping of keys, received NoneType"),
    ],
)
def test_files_that_are_no_configuration(tmp_path, content, message):
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        load(path)


def test_a_list_that_is_too_short_is_told():
    values = preset()
    values["evaluation"] = {"rules": {"calibration": [0.5]}}
    said = "x.yaml: evaluation.rules.calibration: value 2 is missing; received (0.5,)"
    assert refusal(values) == said


def test_missing_file_names_the_presets():
    with pytest.raises(
        ConfigError, match=r"no-such\.yaml: no such configuration file; presets are"
    ):
        load("no-such.yaml")


@pytest.mark.parametrize("text", ["5", "5x", "m", "", 5, "1e999d"])
def test_durations_need_a_number_and_a_unit(text):
    values = preset()
    values["contract"]["tasks"]["dwell"]["label"]["cap"] = text
    assert "expected a duration such as 30s, 10m, 12h or 7d" in refusal(values)


def edit(values: dict, path: str, value: object) -> dict:
    *parents, last = path.split("/")
    for part in parents:
        values = values[part]
    values[last] = value
    return values


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("contract/user", "item_id", "user: expected the name of an id feature of side 'user'"),
        ("contract/item", "nothing", "item: expected the name of an id feature of side 'item'"),
        (
            "contract/features/recent_views/share",
            "recent_likes",
            "share: expected the name of an id feature that shares none itself",
        ),
        ("contract/features/recent_views/dtype", "int", "differs from that of 'item_id'"),
        ("contract/features/recent_views/side", "item", "a history belongs to the user"),
        ("contract/features/region/missing", "default", "needs a default of type string"),
        ("contract/features/region/default", "NY", "default is read under missing: default only"),
        ("contract/tasks/like/when", "dwell", "expected the name of another binary task"),
        ("contract/tasks/like/without", "like", "expected the name of another binary task"),
        ("contract/tasks/dwell/at_least", 3.0, "the task's type is regression"),
        ("contract/tasks/dwell/type", "binary", "binary label from dwell needs at_least"),
        ("contract/tasks/like/label/aggregate", "count", "from 'count' needs at_least"),
        ("contract/tasks/like/transform", "log1p", "is for regression tasks"),
        (
            "contract/tasks/like/label",
            {"rule": "column", "column": "like"},
            "reads logs of shape 'impressions', pipeline.log.shape is 'events'",
        ),
        (
            "contract/features/item_views/side",
            "user",
            "feature 'item_views': a count of the item is of side 'item', received side 'user'",
        ),
        ("contract/features/item_age/side", "context", "a since of the item is of side 'item'"),
        ("contract/features/item_views/column", "views", "it takes neither source nor column"),
        ("contract/features/item_views/pattern", "(a)", "column None, pattern '(a)'"),
        (
            "contract/features/item_id/pattern",
            "(a)",
            "pattern: the item's id is taken as it stands",
        ),
        ("contract/features/region/pattern", "a", "expected one group in parentheses"),
        ("contract/features/region/pattern", "(a", "not a regular expression"),
        (
            "contract/features/item_age",
            {"kind": "number", "side": "item", "mean": {"of": "item", "events": ["LIKE"]}},
            "mean is missing where there was no such event",
        ),
        (
            "contract/features/item_age",
            {
                "kind": "number",
                "side": "item",
                "max": {"of": "item", "events": ["LIKE"]},
                "missing": "indicator",
            },
            "features.item_age.max: needs pipeline.log.columns.value",
        ),
        ("contract/features/item_views/source", "items", "it takes neither source nor column"),
        (
            "contract/features/item_views/since",
            {"of": "item", "events": ["VIEW"]},
            "label_rate, label_mean; received count and since",
        ),
        ("contract/features/item_age/missing", "error", "since is missing where there was no such"),
        (
            "contract/features/item_views",
            {
                "kind": "number",
                "side": "item",
                "rate": {"of": "item", "events": ["LIKE"], "per": ["VIEW"]},
            },
            "rate is missing where there was no such event",
        ),
        (
            "contract/tasks/like/label/over",
            "length",
            "task 'like': over divides values; expected aggregate: sum or max, received 'presence'",
        ),
        (
            "contract/tasks/like",
            {
                "group": "satisfaction",
                "type": "regression",
                "label": {"rule": "event", "events": ["LIKE"], "aggregate": "sum"},
            },
            "contract.tasks.like.label: sum and max need pipeline.log.columns.value",
        ),
        (
            "contract/tasks/like/label",
            {"rule": "ratio", "column": "watched", "over": "length"},
            "task 'like': a binary label from ratio needs at_least",
        ),
        (
            "contract/tasks/dwell/label",
            {"rule": "ratio", "column": "watched", "over": "length"},
            "rule 'ratio' reads logs of shape 'impressions', pipeline.log.shape is 'events'",
        ),
        (
            "contract/tasks/dwell/label/within",
            "1m",
            "task 'dwell': expected within to reach the cap, received within 60s and cap 1800s",
        ),
        ("contract/features/item_views/count/events", [], "at least 1 item"),
        ("pipeline/negatives/exclude", "ever", "needs split.by: random, received 'time'"),
        ("pipeline/cut_off", "2017-01-01T00:00:00", "cut_off: an instant needs a zone"),
        ("pipeline/log/unknown_time", 0, "cannot be split by time"),
        ("pipeline/split/test", 0.95, "validation + test < 1"),
        ("pipeline/split/test", "2017-01-01T00:00:00Z", "two shares or two instants"),
        ("pipeline/log/columns/session", None, "needs pipeline.log.columns.session"),
        ("model/gates", {"lik": {"name": "softmax"}}, "model.gates: expected one of view"),
        ("model/embedding_dims", {"usr": 3}, "model.embedding_dims: expected one of user_id"),
        ("model/id_dropouts", {"usr": 0.3}, "model.id_dropouts: expected one of user_id"),
        ("model/id_dropouts", {"item_like_rate": 0.3}, "'item_like_rate' has no ids that training"),
        (
            "model/wide",
            {"crosses": 8192, "pairs": [["item_id", "item_id"]]},
            "model.wide.pairs: expected an id feature of the user or the context with a "
            "vocabulary, one of user_id",
        ),
        (
            "model/wide",
            {"crosses": 8192, "pairs": [["user_id", "item_views"]]},
            "model.wide.pairs: expected an id feature of the item with a vocabulary, one of "
            "item_id",
        ),
        (
            "model/wide",
            {"pairs": [["user_id", "item_id"]]},
            "model.wide.pairs: model.wide.crosses has room for no pair of values",
        ),
        (
            "model/wide",
            {"crosses_rate": 4},
            "model.wide.crosses_rate: 4.0 is the rate of pairs of values, and model.wide.crosses "
            "has room for none",
        ),
        (
            "model/embedding_dims",
            {"recent_views": 3},
            "model.embedding_dims: 'recent_views' uses the embedding of 'item_id'",
        ),
        (
            "model/embedding_dims",
            {"item_views": 3},
            "model.embedding_dims: 'item_views' is a number without buckets",
        ),
        ("model/gate/num_selected", 9, "gate.num_selected: expected at most 8, received 9"),
        (
            "model",
            {"shared_gate": "all", "gates": {"like": {"name": "softmax"}}},
            "shared_gate: expected none, received all, which lets tasks share a gate: gates gives",
        ),
        (
            "model",
            {"shared_gate": "group", "experts": {"count": 4, "own": 1}},
            "received group, which lets tasks share a gate: experts.own gives a task experts",
        ),
        (
            "model",
            {"shared_gate": "all", "gate": {"name": "sampled"}},
            "which lets tasks share a gate: a sampled gate learns from one task's loss",
        ),
        (
            "model/gates",
            {"like": {"name": "topk", "num_selected": 9}},
            "gates.like.num_selected: expected at most 8, received 9",
        ),
        (
            "model/gate",
            {
                "name": "hierarchical",
                "num_groups": 4,
                "primary": {"name": "topk"},
                "secondary": {"name": "topk", "num_selected": 3},
            },
            "gate.secondary.num_selected: expected at most 2, received 3",
        ),
        (
            "model/gate",
            {
                "name": "hierarchical",
                "num_groups": 3,
                "primary": {"name": "topk"},
                "secondary": {"name": "softmax"},
            },
            "gate.num_groups: expected a divisor of the 8 experts, received 3",
        ),
        ("model/experts/units", [0], "model.experts.units.0: input should be greater"),
        ("model/towers/units", [-1], "model.towers.units.0: input should be greater"),
        ("train/seed", -1, "train.seed: input should be greater than or equal to 0"),
        ("pipeline/seed", -1, "pipeline.seed: input should be greater than or equal to 0"),
        ("pipeline/seed", 2**63, "pipeline.seed: input should be less than"),
        ("name", "../other", "x.yaml: name: string should match pattern"),
        ("name", "", "x.yaml: name: string should match pattern"),
        (
            "contract/features/place",
            {"kind": "position"},
            "expected one position feature, received 'seat', 'place'",
        ),
        ("contract/features/self", {"kind": "number", "side": "user"}, "this name is taken"),
        ("contract/tasks/dwell/clip", [5.0, 1.0], "expected clip to ascend, received 5 and 1"),
        ("contract/tasks/like/label/within", "-1h", "expected a duration such as 30s"),
        (
            "pipeline/log/format/delimiter",
            "::",
            "quotes are read with delimiters of one character only; set quoted: false",
        ),
        ("pipeline/log/files", ["/etc/log.csv"], "pipeline.log.files.0: expected a path or glob"),
        ("pipeline/log/files", [""], "pipeline.log.files.0: expected a path or glob"),
        ("pipeline/log/files", ["a**.csv"], "pipeline.log.files.0: expected a path or glob"),
    ],
)
def test_contradictions_are_refused(path, value, message):
    values = preset()
    values["contract"]["features"]["seat"] = {"kind": "position", "side": "context"}
    del values["model"]["shared_gate"]  # it excludes gates of single tasks
    edit(values, path, value)
    assert message in refusal(values)


@pytest.mark.parametrize("points", [[[100, 1.0], [50, 2.0]], [], [[-5, 1.0]], [[0, -1.0]]])
def test_schedules_that_a_gate_refuses_are_refused(points):
    values = preset()
    values["model"]["gate"] = {
        "name": "hierarchical",
        "num_groups": 2,
        "primary": {"name": "comet", "entropy_schedule": points},
        "secondary": {"name": "topk"},
    }
    assert "primary.entropy_schedule: expected (step, factor) pairs" in refusal(values)


@pytest.mark.parametrize("strategy", ["gumbel_matching", "gumbel_matching_sinkhorn"])
def test_a_balanced_proposal_has_no_effect_on_gumbel_matching(strategy):
    values = preset()
    values["model"]["gate"] = {"name": "sampled", "sinkhorn_proposal": True, "strategy": strategy}
    assert f"expected false with strategy {strategy}" in refusal(values)


@pytest.mark.parametrize(
    ("path", "value", "key"),
    [
        ("pipeline/split/validation", "soon", "pipeline.split.validation"),
        ("pipeline/log/time_unit", "h", "pipeline.log.time_unit"),
        ("contract/tasks/like/label/events", 3, "contract.tasks.like.label.events"),
        ("contract/tasks/like/label/evnts", [], "contract.tasks.like.label.evnts"),
        ("contract/features/region/side", "me", "contract.features.region.side"),
        ("contract/features/Region", {"kind": "number"}, "contract.features.Region"),
        ("model/gate/num_selected", "two", "model.gate.num_selected"),
    ],
)
def test_the_key_is_named_as_the_file_has_it(path, value, key):
    """Not by the member of a union that pydantic tried."""
    values = preset()
    edit(values, path, value)
    for line in refusal(values).splitlines():
        assert line.startswith((f"x.yaml: {key}: ", f"x.yaml: {key}.side: ")), line


def test_a_missing_key_is_named_where_it_belongs():
    values = preset()
    del values["contract"]["tasks"]["like"]["label"]["events"]
    assert refusal(values) == ("x.yaml: contract.tasks.like.label.events: required key is missing")


def test_long_durations_survive_json():
    values = preset()
    values["contract"]["tasks"]["like"]["label"]["within"] = "12345678s"
    config = parse(Config, values, "x.yaml")
    assert parse(Config, json.loads(config.model_dump_json()), "copy") == config


def test_rates_need_labels_that_close():
    values = preset()
    values["contract"]["rates"] = {"of": ["user"], "tasks": ["bookmark"]}
    del values["contract"]["tasks"]["like"]["label"]["within"]
    values["contract"]["tasks"]["bookmark"]["without"] = "like"
    values["pipeline"]["split"]["embargo"] = False
    message = "contract.features.user_bookmark_rate: label 'like' waits without limit"
    assert message in refusal(values)
    values["pipeline"]["attribution"] = "30d"
    parse(Config, values, "x.yaml")


def test_rates_of_columns_need_the_time_when_they_are_complete():
    values = preset("demo")
    values["contract"]["features"].pop("recent_clicks")
    values["contract"]["rates"] = {"of": ["item"], "tasks": ["share"]}
    parse(Config, values, "x.yaml")
    del values["pipeline"]["log"]["known_after"]
    message = "contract.features.item_share_rate: label 'share' is feedback, which comes after its"
    assert message in refusal(values)


def test_counters_need_every_events_time():
    values = preset()
    values["pipeline"]["split"]["by"] = "user"
    values["pipeline"]["log"]["unknown_time"] = 0
    message = "contract.features.item_views_1d: counters and rates need every event's time"
    assert message in refusal(values)


def test_labels_that_refer_to_one_another_in_a_ring_are_refused():
    values = preset()
    values["contract"]["tasks"]["like"]["when"] = "bookmark"
    values["contract"]["tasks"]["bookmark"]["without"] = "like"
    assert "refers to itself" in refusal(values)


def test_names_of_the_signature_are_taken():
    values = preset()
    values["contract"]["tasks"]["score"] = values["contract"]["tasks"].pop("like")
    assert "this name is the combined score's" in refusal(values)


def test_split_instants_come_from_yaml_and_need_a_zone(tmp_path):
    text = (PRESET_FILES / "deskdrop.yaml").read_text()
    path = tmp_path / "instants.yaml"
    split = "split: {by: time, validation: 2016-12-01T00:00:00Z, test: 2017-01-01T00:00:00Z}"
    path.write_text(text.replace("split: {by: time, validation: 0.1, test: 0.1}", split))
    assert load(path).pipeline.split.test.year == 2017
    path.write_text(path.read_text().replace("00:00Z", "00:00"))
    with pytest.raises(ConfigError, match="instants need a zone"):
        load(path)


def test_configuration_is_frozen():
    with pytest.raises(Exception, match="frozen"):
        load("demo").train.epochs = 3


def test_a_learnt_variance_beside_that_of_a_density_is_refused():
    values = preset()
    values["contract"]["tasks"]["dwell"]["loss"] = "censored"
    values["model"]["task_weighting"] = "uncertainty"
    assert "the loss of task 'dwell' (censored) has one of its own" in refusal(values)


@pytest.mark.parametrize("place", [0, 1])
def test_a_sampled_gate_learns_from_one_tasks_rows(place):
    """In a funnel the loss of a task depends on the draws of two gates, and trains one of them."""
    values = preset()
    del values["model"]["shared_gate"]
    binary = [n for n, t in values["contract"]["tasks"].items() if t["type"] == "binary"]
    first, second = binary[1:3]
    task = (first, second)[place]
    values["train"] |= {"teacher": None}
    values["model"] |= {"gates": {task: {"name": "sampled"}}}
    parse(Config, values, "x.yaml")
    values["train"] |= {"ranking": {"kind": "listwise"}}
    assert f"model.gates.{task}: expected another gate than sampled" in refusal(values)
    values["train"] |= {"ranking": None}
    values["contract"]["tasks"][second]["given"] = first
    assert f"task {task!r} stands in a funnel" in refusal(values)
    values["model"]["gates"] = {}
    parse(Config, values, "x.yaml")


def test_ranking_terms_need_a_task_that_counts():
    values = preset()
    values["train"] |= {"ranking": {"kind": "listwise"}, "teacher": None}
    for task in values["contract"]["tasks"].values():
        if task["type"] == "binary":
            task["weight"] = 0.0
    assert "train.ranking: needs a binary task with a weight above 0" in refusal(values)


def test_what_replaced_lazy_embeddings_is_named():
    values = preset()
    values["train"]["lazy_embeddings"] = True
    assert "lazy_embeddings: True is now embeddings: rows" in refusal(values)


def test_halved_moments_need_updates_of_rows():
    values = preset()
    values["train"] |= {"embeddings": "dense", "moments": "bfloat16"}
    assert "moments: expected float32 where embeddings is dense, received" in refusal(values)


@pytest.mark.parametrize(("key", "value"), [("min_count", 3), ("max_size", 10)])
def test_hashed_ids_have_no_vocabulary_to_cut(tmp_path, key, value):
    values = load("demo").model_dump(mode="json")
    name = values["contract"]["item"]
    feature = values["contract"]["features"][name]
    feature |= {"hash_buckets": 50, key: value}
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(values))
    message = f"contract.features.{name}.{key}: expected none beside hash_buckets, received {value}"
    with pytest.raises(ConfigError, match=message):
        load(path)
    assert parse_stored(values, "checkpoint")  # a checkpoint that has both loads
    feature["hash_buckets"] = None
    path.write_text(yaml.safe_dump(values))
    assert load(path)
