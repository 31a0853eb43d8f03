"""The metrics page, read by prometheus-client's own parser."""

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from multigate.serving.core.metrics import Counter, Gauge, Histogram, ServerMetrics

NAMES = {
    ":tensorflow:serving:request_count": "counter",
    ":tensorflow:serving:request_latency": "histogram",
    ":tensorflow:serving:runtime_latency": "histogram",
    ":tensorflow:serving:request_example_counts": "histogram",
    ":tensorflow:serving:request_example_count_total": "counter",
    "multigate_requests_total": "counter",
    "multigate_calls_in_flight": "gauge",
    "multigate_spans_total": "counter",
    "multigate_event_loop_lag_seconds": "histogram",
    "multigate_request_seconds": "histogram",
    "multigate_candidates": "histogram",
    "multigate_recommendations_total": "counter",
    "multigate_retrieval_seconds": "histogram",
    "multigate_missing_values_total": "counter",
    "multigate_unscored_items_total": "counter",
    "multigate_stored_values_total": "counter",
    "multigate_feature_store_seconds": "histogram",
    "multigate_feature_store_failures_total": "counter",
    "multigate_feature_store_skips_total": "counter",
    "multigate_score": "histogram",
    "multigate_watched_ids_total": "counter",
    "multigate_watched_calls_total": "counter",
    "multigate_watched_experts_per_row": "histogram",
    "multigate_share_shift": "gauge",
    "multigate_score_stability_index": "gauge",
    "multigate_impression_rows_total": "counter",
    "multigate_trial_percent": "gauge",
    "multigate_canary_calls_total": "counter",
    "multigate_shadow_calls_total": "counter",
    "multigate_shadow_rows_total": "counter",
    "multigate_shadow_pairs": "histogram",
    "multigate_shadow_overlap": "histogram",
    "multigate_store_looks_total": "counter",
    "multigate_store_copies_total": "counter",
    "multigate_store_read_timestamp_seconds": "gauge",
    "multigate_config_reloads_total": "counter",
    "multigate_thread_failures_total": "counter",
    "multigate_queue_seconds": "histogram",
    "multigate_batch_rows": "histogram",
    "multigate_batch_calls": "histogram",
    "multigate_list_places_total": "counter",
    "multigate_version_loads_total": "counter",
    "multigate_version_load_seconds": "histogram",
    "multigate_model_version": "gauge",
    "multigate_model_loaded_timestamp_seconds": "gauge",
    "multigate_model_exported_timestamp_seconds": "gauge",
    "multigate_experts_per_row": "gauge",
    "multigate_features_cut_off_timestamp_seconds": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_max_fds": "gauge",
    "process_open_fds": "gauge",
    "process_resident_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_virtual_memory_bytes": "gauge",
}
"""Names that dashboards and alerts ask for, as they stand on the page."""


def page_of(*metrics):
    """The page of these metrics, by sample name and labels."""
    registry = CollectorRegistry(auto_describe=True)
    for metric in metrics:
        registry.register(metric)
    return registry.get_sample_value


def filled():
    """Metrics of a server that has answered calls, with a number of each kind."""
    metrics = ServerMetrics()
    metrics.answered("Rank", "OK", 0.002)
    metrics.missing.add_all("m", {"age": 2, "city": 3})
    metrics.version.set(7, "m")
    metrics.scores.observe_all(np.array([0.002, 0.3, 0.3]), "m", "click")
    return metrics


def test_the_page_has_these_names_and_types_and_no_others():
    families = {family.name: family for family in text_string_to_metric_families(filled().text())}
    suffix = {"counter": "_total"}  # that the parser takes from a counter's name
    expected = {name.removesuffix(suffix.get(kind, "")): kind for name, kind in NAMES.items()}
    assert {name: family.type for name, family in families.items()} == expected
    assert all(family.documentation for family in families.values())


def test_samples_have_their_names_labels_and_bounds():
    lines = filled().text().splitlines()
    assert ':tensorflow:serving:request_count{method="Rank",model_name="",status="OK"} 1.0' in lines
    assert 'multigate_missing_values_total{feature="city",model="m"} 3.0' in lines
    assert 'multigate_request_seconds_bucket{le="5e-05",method="Rank"} 0.0' in lines
    assert 'multigate_request_seconds_bucket{le="1",method="Rank"} 1.0' in lines
    assert 'multigate_score_bucket{le="+Inf",model="m",task="click"} 3.0' in lines
    assert not [line for line in lines if "_created" in line or "request_count_total" in line]


def test_a_histogram_counts_cumulatively_and_takes_arrays():
    one, many = (Histogram(name, "h", [1, 2, 4], ["m"]) for name in ("one", "many"))
    numbers = np.array([0.5, 1.0, 1.5, 9.0])
    many.observe_all(numbers, "x")
    for number in numbers:
        one.observe(number, "x")
    value = page_of(one, many)
    for name in ("one", "many"):
        buckets = [value(f"{name}_bucket", {"m": "x", "le": le}) for le in ("1", "2", "4", "+Inf")]
        assert buckets == [2, 3, 3, 4]
        assert value(f"{name}_count", {"m": "x"}) == 4
        assert value(f"{name}_sum", {"m": "x"}) == 12


def test_a_gauge_forgets_by_its_first_label():
    gauge = Gauge("g", "g", ["model", "task"])
    for model in ("a", "b"):
        gauge.set(1, model, "click")
        gauge.set(2, model, "like")
    gauge.forget("a")
    value = page_of(gauge)
    found = {model: value("g", {"model": model, "task": "like"}) for model in ("a", "b")}
    assert found == {"a": None, "b": 2}


def test_a_version_that_is_gone_leaves_no_sample():
    metrics = ServerMetrics()
    for model, version in (("a", "1"), ("a", "12"), ("b", "1")):
        metrics.answered("Rank", "OK", 0.1, model=model, version=version, signature="rank")
        metrics.trial.set(5, model, version, "canary")
        metrics.canary_calls.add(model, version, "answered")
        metrics.shadow_calls.add(model, version, "scored")
        metrics.shadow_pairs.observe(0.9, model, version)
        metrics.shadow_overlap.observe(0.9, model, version)
    families = list(text_string_to_metric_families(metrics.text()))
    of_versions = {one.name for one in families for of in one.samples if "version" in of.labels}
    assert len(of_versions) == 6  # a metric of versions that is added must be added above
    metrics.forget_version("a", 1)
    for family in text_string_to_metric_families(metrics.text()):
        if family.name in of_versions:
            found = {(of.labels["model"], of.labels["version"]) for of in family.samples}
            assert found == {("a", "12"), ("b", "1")}, family.name


def test_label_values_are_escaped():
    counter = Counter("c_total", "c", ["model"])
    odd = 'a"b\\c\nd'
    counter.add(odd)
    metrics = ServerMetrics()
    metrics.registry.register(counter)
    (family,) = [one for one in text_string_to_metric_families(metrics.text()) if one.name == "c"]
    assert [sample.labels for sample in family.samples] == [{"model": odd}]


def test_a_name_is_registered_once():
    metrics = ServerMetrics()
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        metrics.registry.register(Gauge("multigate_model_version", "again"))
