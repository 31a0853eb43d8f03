"""The local runner against Beam's own, and what it does with failures and unknown steps."""

import threading
from concurrent.futures import ThreadPoolExecutor

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from multigate.pipeline.core import local_runner
from multigate.pipeline.core.local_runner import LocalRunner
from multigate.pipeline.core.runner import local_options


class Tags(beam.DoFn):
    """Odd numbers to an output of their own, even ones to the main one; ten to none."""

    def process(self, element, offset, table):
        if element == 10:
            return
        if element % 2:
            yield beam.pvalue.TaggedOutput("odd", (element % 3, element + offset))
        else:
            yield element % 3, table.get(element, -1)


def wire(pipeline, keep):
    """A pipeline with every kind of step that the job has."""
    numbers = pipeline | "Numbers" >> beam.Create(range(20), reshuffle=False) | beam.Reshuffle()
    none = pipeline | "None" >> beam.Create([], reshuffle=False)
    table = pipeline | "Table" >> beam.Create([(2, 7), (4, 8)], reshuffle=False)
    total = numbers | "Total" >> beam.CombineGlobally(sum)
    found = numbers | beam.ParDo(
        Tags(), beam.pvalue.AsSingleton(total), beam.pvalue.AsDict(table)
    ).with_outputs("odd", main="even")
    both = (found.odd, found.even, none) | beam.Flatten()
    keep(both | "Group" >> beam.GroupByKey() | beam.MapTuple(lambda k, v: (k, sorted(v))), "groups")
    keep(both | "Sums" >> beam.CombinePerKey(sum), "sums")
    keep(none | "No sums" >> beam.CombinePerKey(sum), "empty")
    keep(none | "No total" >> beam.CombineGlobally(sum), "nothing")
    listed = numbers | "Listed" >> beam.Map(
        lambda n, rest: (n, len(rest)), beam.pvalue.AsList(found.odd)
    )
    keep(listed, "listed")
    keep(numbers | beam.FlatMap(lambda n: [n] * (n % 3)), "repeated")


@pytest.mark.parametrize("workers", [1, 3])
def test_it_computes_what_beams_runner_computes(workers, tmp_path):
    made = {}
    for runner in (LocalRunner(), FnApiRunner()):
        folder = tmp_path / type(runner).__name__
        folder.mkdir()

        def keep(collection, name, folder=folder):
            def write(elements):
                (folder / name).write_text(repr(sorted(elements)))

            listed = collection.pipeline | f"One {name}" >> beam.Create([None], reshuffle=False)
            listed | name >> beam.Map(lambda _, all_: write(all_), beam.pvalue.AsList(collection))

        options = PipelineOptions([f"--direct_num_workers={workers}"])
        with beam.Pipeline(runner=runner, options=options) as pipeline:
            wire(pipeline, keep)
        made[type(runner)] = {path.name: path.read_text() for path in folder.iterdir()}
    assert len(made[LocalRunner]) == 6
    assert made[LocalRunner] == made[FnApiRunner]


def test_elements_of_a_step_run_at_the_same_time_and_keep_their_order():
    met = threading.Barrier(3, timeout=200)
    found = []

    def meet(element):
        met.wait()  # for ever, were they called one after another
        return element

    options = PipelineOptions(["--direct_num_workers=3"])
    with beam.Pipeline(runner=LocalRunner(), options=options) as pipeline:
        numbers = pipeline | beam.Create([3, 1, 2], reshuffle=False) | beam.Map(meet)
        once = pipeline | "Once" >> beam.Create([None], reshuffle=False)
        once | "Keep" >> beam.Map(lambda _, all_: found.extend(all_), beam.pvalue.AsList(numbers))
    assert found == [3, 1, 2]


def test_a_failure_is_raised_as_it_is_and_ends_the_work():
    begun = []

    def fail(element):
        begun.append(element)
        raise OSError(28, "No space left on device", "part")

    options = PipelineOptions(["--direct_num_workers=1"])
    with (
        pytest.raises(OSError, match="No space left") as raised,
        beam.Pipeline(runner=LocalRunner(), options=options) as pipeline,
    ):
        pipeline | beam.Create(range(1000), reshuffle=False) | beam.Map(fail)
    assert type(raised.value) is OSError
    assert not hasattr(raised.value, "_tagged_with_step")
    assert len(begun) < 1000


def test_few_calls_wait_at_a_time(monkeypatch):
    """Each takes a kilobyte while it waits, and a large log has some 100,000 parcels."""
    made, done = [], []
    submit = ThreadPoolExecutor.submit
    monkeypatch.setattr(local_runner, "_WAITING", 10)
    monkeypatch.setattr(
        ThreadPoolExecutor, "submit", lambda *call: made.append(len(done)) or submit(*call)
    )
    with beam.Pipeline(runner=LocalRunner()) as pipeline:
        pipeline | beam.Create(range(100), reshuffle=False) | beam.Map(done.append)
    assert len(done) == 100
    # The calls before this one, less those that were done by then.
    assert max(number - finished for number, finished in enumerate(made)) < 10


class Large:
    """An element that counts how many of its kind there are."""

    alive = most = 0

    def __init__(self, number):
        self.number = number
        Large.alive += 1
        Large.most = max(Large.most, Large.alive)

    def __del__(self):
        Large.alive -= 1


def add_large(elements):
    return sum(one if isinstance(one, int) else one.number for one in elements)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("others", [0, 1])
def test_what_one_combine_alone_reads_is_combined_as_it_is_made(monkeypatch, keyed, others):
    """Held until the step ended, counts of 512 buckets made 100 million events take 3 GiB."""
    monkeypatch.setattr(local_runner, "_WAITING", 4)
    monkeypatch.setattr(Large, "alive", 0)
    monkeypatch.setattr(Large, "most", 0)
    combine = beam.CombineFn.from_callable(add_large)
    found = []
    with beam.Pipeline(runner=LocalRunner()) as pipeline:
        large = pipeline | beam.Create(range(200), reshuffle=False)
        if keyed:
            large |= "Keyed" >> beam.Map(lambda n: (n % 2, Large(n)))
            combined = large | beam.CombinePerKey(combine)
        else:
            large |= "Large" >> beam.Map(Large)
            combined = large | beam.CombineGlobally(combine)
        for _ in range(others):
            large | "Another reader" >> beam.Map(id)
        once = pipeline | "Once" >> beam.Create([None], reshuffle=False)
        once | "Keep" >> beam.Map(lambda _, all_: found.extend(all_), beam.pvalue.AsList(combined))
    assert found == ([(0, 9900), (1, 10000)] if keyed else [19900])
    assert Large.most == 200 if others else Large.most < 40


@pytest.mark.parametrize(
    "made",
    [
        lambda one: beam.CombinePerKey(sum, 1),
        lambda one: beam.CombineGlobally(sum, beam.pvalue.AsSingleton(one)),
        lambda one: beam.CombineGlobally(sum).without_defaults(),
    ],
)
def test_what_it_would_leave_out_of_a_combine_is_refused(made):
    """It ran them without the arguments, and gave a total of nothing: other results than Beam's."""
    with (
        pytest.raises(NotImplementedError, match=r"Combine.*choose one of Beam's by --runner"),
        beam.Pipeline(runner=LocalRunner()) as pipeline,
    ):
        one = pipeline | beam.Create([(1, 2)], reshuffle=False)
        one | made(one)


def test_a_step_that_it_does_not_know_is_refused():
    with (
        pytest.raises(NotImplementedError, match=r"no Impulse .*choose one of Beam's by --runner"),
        beam.Pipeline(runner=LocalRunner()) as pipeline,
    ):
        pipeline | beam.Impulse()


def test_the_default_runner_is_found_by_its_name():
    with beam.Pipeline(options=PipelineOptions(local_options())) as pipeline:
        assert isinstance(pipeline.runner, LocalRunner)
