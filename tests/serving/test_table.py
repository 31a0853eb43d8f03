"""The table of docs/serving.md, "What a call gets": each of its cases has tests.

A case that is new or reworded fails here until somebody has read it against its tests.
"""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parents[1] / "docs" / "serving.md").read_text()
PROTOCOL, RANKING, CASES = (
    f"rpc/test_{name}.py::test_" for name in ("protocol", "ranking", "cases")
)
RECOMMENDATION, SERVER = "rpc/test_recommendation.py::test_", "rpc/test_server.py::test_"
BATCHING, MODELS = "versions/test_batching.py::test_", "versions/test_models.py::test_"
EXPLAINING, STORE = "versions/test_explaining.py::test_", "feature_store/test_backends.py::test_"
SECURITY, CANCELLATION = "core/test_security.py::test_", "versions/test_cancellation.py::test_"
PREDICT, MODEL = (
    f"{PROTOCOL}predict_table",
    f"{CASES}every_method_says_what_is_wrong_with_the_model",
)
QUEUE_AND_CAP = f"{BATCHING}deadline_queue_limit_and_admission_cap_through_the_stubs"

TRIED = {
    "model name absent": [
        f"{MODEL}[no name]",
        f"{CASES}recommend_says_what_is_wrong_with_the_model",
    ],
    "unknown model; a version that is unknown or not available": [
        f"{MODEL}[unknown model]",
        f"{MODEL}[unknown version]",
        f"{PROTOCOL}model_status",
    ],
    "unknown version label": [f"{MODEL}[unknown label]"],
    "Recommend of a ranker without candidate model; Rank or Predict of a candidate model": [
        f"{RECOMMENDATION}a_ranker_without_a_candidate_model_says_so",
        f"{RECOMMENDATION}a_candidate_model_does_not_rank",
    ],
    "Explain with a place, a number of pairs or a seed out of range, or of one candidate against "
    "the others": [
        f"{CASES}explain_refuses_what_is_out_of_range",
        f"{CASES}explain_refuses_one_candidate_against_the_others",
    ],
    "Explain of a version without example rows": [
        f"{EXPLAINING}a_version_without_example_rows_says_so"
    ],
    "unknown signature": [
        f"{PREDICT}[unknown signature]",
        f"{PROTOCOL}classify_table",
        f"{CASES}methods_of_examples_refuse_other_signatures",
    ],
    "missing or extra input; bad or repeated output filter": [
        f"{PREDICT}[missing and extra input]",
        f"{PREDICT}[unknown output]",
        f"{PREDICT}[repeated output]",
        f"{PREDICT}[more outputs than there are]",
    ],
    "wrong dtype or shape, NaN or infinity, a missing value of the user or the context whose rule "
    "is `error`, ragged columns, no candidates or too many, unknown feature, task or `returns`": [
        *(f"{PREDICT}[{case}]" for case in ("wrong dtype", "wrong shape", "NaN", "infinity")),
        f"{PREDICT}[other number of rows]",
        f"{PROTOCOL}signatures_beside_rank_refuse_what_it_refuses",
        f"{PROTOCOL}no_rows_at_all",
        f"{RANKING}bad_requests_name_what_is_wrong",
        f"{RANKING}bad_messages_name_what_is_wrong",
        f"{RANKING}too_many_candidates",
        f"{RANKING}order_only",
        f"{RECOMMENDATION}bad_requests_are_told_what_is_wrong",
    ],
    "Predict, Classify, Regress with more rows than `--max_candidates`, MultiInference with more "
    "examples times tasks; a text of the user or the context over 4,096 characters, a request id "
    "over 256; texts of more than 16 MiB that a message holds once: by a tensor's shape or in the "
    "context of tf.Examples": [
        f"{PROTOCOL}a_large_context_of_many_examples_is_refused",
        f"{PROTOCOL}the_size_of_a_run_is_limited_and_a_small_message_cannot_ask_for_a_large_one",
        f"{PROTOCOL}rows_of_calls_that_are_not_joined_are_limited",
        f"{RANKING}bad_requests_name_what_is_wrong",
    ],
    "unseen ids": [f"{RANKING}unseen_ids_are_no_error"],
    "missing values whose rule is not `error`": [
        f"{RANKING}missing_values_follow_their_rules",
        f"{PROTOCOL}predict_reads_missing_values_and_long_lists_as_rank_does",
    ],
    "candidates without a value whose rule is `error`": [
        f"{RANKING}an_item_without_a_required_feature_fails_nobody_else",
        f"{RANKING}a_limit_counts_scored_items_and_a_long_list_of_others_is_cut",
        f"{RANKING}a_column_without_any_value_is_missing_for_every_candidate",
        f"{PREDICT}[missing text whose rule is error]",
    ],
    "ids that the feature store was asked for and does not know": [
        f"{STORE}unknown_ids_have_the_missing_rule"
    ],
    "a feature is left out, and the feature store does not answer": [
        f"{STORE}redis_that_does_not_answer_in_time"
    ],
    "bytes that are not the request message": [
        f"{PROTOCOL}bytes_that_are_no_message_are_the_callers_fault",
        "rpc/test_faults.py::test_streams_refuse_bytes_that_are_no_message",
    ],
    "message over `--max_message_mebibytes`": [
        f"{PROTOCOL}messages_over_the_limit_are_refused",
        f"{PROTOCOL}a_message_of_many_empty_texts_is_refused_before_it_is_parsed",
    ],
    "message of more than 262,144 texts and unpacked numbers, or with more than 32,768 messages "
    "inside": [
        f"{PROTOCOL}a_message_of_too_many_parts_is_refused_before_it_is_parsed",
        "request/test_parts.py::test_a_message_has_a_limit_of_parts_of_every_kind",
    ],
    "more than `--max_queued_calls` calls wait for a run, of any signature": [
        QUEUE_AND_CAP,
        f"{PROTOCOL}calls_that_are_not_joined_and_wait_are_limited",
    ],
    "more than `--max_concurrent_calls` calls at once; health checks neither count nor are "
    "refused": [
        QUEUE_AND_CAP,
        f"{BATCHING}health_checks_are_answered_where_no_other_call_is_admitted",
    ],
    "more streams (health watches, reflection) than a quarter of `--max_concurrent_calls`": [
        f"{SERVER}streams_leave_calls_their_room_and_are_limited"
    ],
    "deadline passed, or call cancelled, before the run": [
        QUEUE_AND_CAP,
        f"{BATCHING}a_deadline_that_passes_in_the_queue_ends_the_call_and_its_work",
        f"{BATCHING}a_deadline_that_has_passed_on_arrival_is_not_queued",
        f"{BATCHING}a_cancelled_call_leaves_the_queue",
        f"{PROTOCOL}calls_that_are_not_joined_and_wait_are_limited",
        f"{CANCELLATION}calls_that_hold_a_slot",
    ],
    "deadlines of all calls of a run passed during the run": [
        f"{CASES}a_deadline_that_passes_during_the_run_leaves_the_run",
        f"{BATCHING}a_run_that_tensorflow_ended_leaves_the_next_ones_right",
        "../runtime/test_session.py::test_a_run_ends_at_its_deadline",
    ],
    "no valid bearer token, if tokens are configured": [
        f"{SECURITY}every_call_but_health_shows_a_token"
    ],
    "reload request without a valid admin token, or without `--admin_token_file`": [
        f"{SECURITY}only_an_admin_token_may_reload"
    ],
    "reload request with an invalid configuration": [
        f"{PROTOCOL}a_reload_request_without_models_is_refused",
        f"{MODELS}a_reload_applies_whole_or_not_at_all",
    ],
    "reload request with a model that cannot be loaded, or a label of a version that is not "
    "available": [f"{MODELS}a_reload_applies_whole_or_not_at_all"],
    "server draining": [
        f"{SERVER}sigterm_drains_in_spite_of_loads_and_the_process_runs_without_keras"
    ],
    "a bug in the server": [f"{SERVER}a_bug_of_ours_is_internal_with_an_id_that_the_log_carries"],
}
"""The tests of each case of "What a call gets", below `tests/serving`."""


def test_every_case_of_the_table_is_tried():
    table = (
        PAGE.partition("## What a call gets\n")[2].partition("\n\nThe combined score")[0].strip()
    )
    header, _, *rows = [line.removeprefix("| ").partition(" | ")[0] for line in table.splitlines()]
    assert header == "case"
    assert sorted(rows) == sorted(TRIED)


@pytest.mark.parametrize("case", TRIED)
def test_the_tests_of_a_case_exist(case):
    assert TRIED[case]
    for test in TRIED[case]:
        path, _, name = test.partition("::")
        source = (TESTS / path).read_text()
        name, _, parameter = name.removesuffix("]").partition("[")
        functions = [one.name for one in ast.parse(source).body if isinstance(one, ast.FunctionDef)]
        assert name in functions
        assert f'"{parameter}"' in source or not parameter
