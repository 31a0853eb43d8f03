"""A Beam runner for one machine: threads call the job's functions directly.

Beam's own local runner first describes the job in messages, as for a cluster, and then encodes each
element for a worker in the same process; 49 steps take it about three seconds of CPU however small
the log is, which is most of a night's run over one day.  Here elements are passed on as they are.
The transforms are the same, so is what they write; other runners are chosen by `--runner`.

It knows what `transforms` is made of: Create, ParDo with side inputs and tagged outputs,
GroupByKey, combines, Flatten and Reshuffle, without windows, state or bundles.  Anything else is
refused.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from multigate.pipeline.core.runner import import_beam

import_beam()
import apache_beam as beam  # noqa: E402
from apache_beam.internal.util import insert_values_in_args  # noqa: E402
from apache_beam.options.pipeline_options import DirectOptions  # noqa: E402
from apache_beam.pipeline import PipelineVisitor  # noqa: E402
from apache_beam.runners.runner import (  # noqa: E402
    PipelineResult,
    PipelineRunner,
    PipelineState,
)

_COMBINES = (beam.CombinePerKey, beam.CombineGlobally)
_WHOLE = (beam.Create, beam.Reshuffle, beam.GroupByKey, *_COMBINES)

_WAITING = 1024  # calls: each costs a kilobyte while it waits, and a large log has many parcels

Parallel = Callable[..., Iterable[Any]]
"""`map`, several calls at a time."""


class LocalRunner(PipelineRunner):
    """Runs a pipeline in threads of this process, one step after another.

    Elements of one step run in parallel, as many at a time as `--direct_num_workers` says, and the
    outputs keep the order of the inputs.  A stage's exception is raised as it is; calls that have
    not begun by then are given up.
    """

    def apply(self, transform: Any, input: Any, options: Any) -> Any:
        """Leave whole what this runner computes itself; Beam expands the rest.

        Raises:
            NotImplementedError: a combine with arguments or without a total of nothing.
        """
        if isinstance(transform, _COMBINES) and (
            transform.args or transform.kwargs or not getattr(transform, "has_defaults", True)
        ):
            raise NotImplementedError(
                f"the local runner has no combines with arguments or without defaults "
                f"({transform.label}); choose one of Beam's by --runner"
            )
        if isinstance(transform, _WHOLE):
            return beam.PCollection(input.pipeline)
        return transform.expand(input)

    def run_pipeline(self, pipeline: Any, options: Any) -> PipelineResult:
        """Compute every step, in the order in which they were applied.

        Raises:
            NotImplementedError: a step that this runner does not know.
        """
        steps = _steps(pipeline)
        readers = defaultdict(list)
        for step in steps:
            for source in _sources(step):
                readers[source].append(step)
        workers = options.view_as(DirectOptions).direct_num_workers or os.cpu_count() or 1
        values: dict[Any, Any] = {}  # the elements of each collection that is still needed
        with _threads(workers) as parallel:
            for step in steps:
                made = {
                    name: _collector(readers[collection])
                    for name, collection in step.outputs.items()
                    if collection in readers
                }
                for name, element in _compute(step, values, parallel):
                    if name in made:
                        made[name].append(element)
                values.update((step.outputs[name], elements) for name, elements in made.items())
                for source in _sources(step):
                    if readers[source][-1] is step:
                        values.pop(source, None)
        return _Done(PipelineState.DONE)


class _Done(PipelineResult):
    def wait_until_finish(self, duration: int | None = None) -> Any:
        """Return at once: all is done."""
        return self.state


@contextmanager
def _threads(workers: int) -> Iterator[Parallel]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="pipeline")

    def parallel(function: Callable[[Any], Any], elements: Iterable[Any]) -> Iterator[Any]:
        rest = iter(elements)
        while some := list(islice(rest, _WAITING)):
            yield from pool.map(function, some)

    try:
        yield parallel
    finally:
        pool.shutdown(cancel_futures=True)


class _Steps(PipelineVisitor):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def visit_transform(self, transform_node: Any) -> None:
        self.found.append(transform_node)


def _steps(pipeline: Any) -> list[Any]:
    """The applied transforms that compute something, in order."""
    visitor = _Steps()
    pipeline.visit(visitor)
    return visitor.found


def _sources(step: Any) -> list[Any]:
    """The collections that a step reads."""
    return [*step.inputs, *(side.pvalue for side in step.side_inputs)]


def _collector(readers: list[Any]) -> Any:
    """What takes the elements of a collection as they are made.

    What one combine alone reads is combined at once.  Kept until their step has ended, counts of
    each of 512 buckets take more memory than all else that the job does.
    """
    alone = len(readers) == 1 and isinstance(readers[0].transform, _COMBINES)
    return _Combined(readers[0].transform) if alone else []


class _Combined:
    """What a combine has made of elements so far, by their keys."""

    def __init__(self, transform: Any) -> None:
        self._combine = beam.CombineFn.maybe_from_callable(transform.fn)
        self._of_pairs = isinstance(transform, beam.CombinePerKey)
        # Without elements there are no keys, but a total of nothing.
        self._made = {} if self._of_pairs else {None: self._combine.create_accumulator()}

    def append(self, element: Any) -> None:
        """Combine one more."""
        key, value = element if self._of_pairs else (None, element)
        made = self._made[key] if key in self._made else self._combine.create_accumulator()
        self._made[key] = self._combine.add_input(made, value)

    def outputs(self, parallel: Parallel) -> Iterable[Any]:
        """What the combine puts out: pairs by key, or one total."""
        outputs = parallel(self._combine.extract_output, self._made.values())
        return zip(self._made, outputs, strict=True) if self._of_pairs else outputs


def _compute(
    step: Any, values: dict[Any, Any], parallel: Parallel
) -> Iterator[tuple[str | None, Any]]:
    """The elements that a step makes as they are made, with the name of their output."""
    transform = step.transform
    inputs = [values.get(source, []) for source in step.inputs]
    match transform:
        case beam.Create():
            made: Iterable[Any] = transform.values
        case beam.Flatten():
            made = chain.from_iterable(inputs)
        case beam.Reshuffle():
            made = inputs[0]
        case beam.GroupByKey():
            made = _groups(inputs[0]).items()
        case beam.CombinePerKey() | beam.CombineGlobally():
            made = _combined(transform, inputs[0]).outputs(parallel)
        case beam.ParDo():
            yield from _call(step, inputs[0], values, parallel)
            return
        case _:
            raise NotImplementedError(
                f"the local runner has no {type(transform).__name__} ({step.full_label}); choose "
                "one of Beam's by --runner"
            )
    for element in made:
        yield None, element


def _combined(transform: Any, elements: list[Any] | _Combined) -> _Combined:
    if isinstance(elements, _Combined):
        return elements
    combined = _Combined(transform)
    for element in elements:
        combined.append(element)
    return combined


def _groups(pairs: list[tuple[Any, Any]]) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return found


def _call(
    step: Any, elements: list[Any], values: dict[Any, Any], parallel: Parallel
) -> Iterator[tuple[str | None, Any]]:
    """What a function makes of each element and of its side inputs."""
    transform = step.transform
    views = [
        side._from_runtime_iterable(iter(values.get(side.pvalue, [])), side._view_options())
        for side in step.side_inputs
    ]
    rest, named = insert_values_in_args(transform.args, transform.kwargs, views)

    def call(element: Any) -> list[Any]:
        return list(transform.fn.process(element, *rest, **named) or ())

    for results in parallel(call, elements):
        for result in results:
            tagged = isinstance(result, beam.pvalue.TaggedOutput)
            yield (result.tag, result.value) if tagged else (None, result)
