"""The queue that gathers calls for a thread: bounded, in order, patient, and empty at its end."""

import random
import threading

import pytest

from multigate.serving.observe.gathering import GatherQueue


def test_the_oldest_are_taken_up_to_the_weight_or_one():
    queue = GatherQueue[str](100, together=10, seconds=0.0)
    for piece, weight in {"a": 4, "b": 5, "c": 3, "large": 30, "d": 1}.items():
        assert queue.add(piece, weight)
    assert [queue.take() for _ in range(4)] == [["a", "b"], ["c"], ["large"], ["d"]]
    assert queue.take(0.0) == []


def test_what_finds_no_room_is_refused_until_something_is_taken():
    queue = GatherQueue[int](10, together=5, seconds=0.0)
    assert [queue.add(n, 4) for n in range(4)] == [True, True, False, False]
    assert queue.add(4, 2)
    assert not queue.add(5, 1)
    assert queue.take() == [0]
    assert queue.add(6, 4)
    assert [queue.take() for _ in range(2)] == [[1], [4]]


@pytest.mark.parametrize(("most", "weights"), [(100, [4, 6]), (12, [4, 3])])
def test_the_first_waits_for_others_until_they_are_enough(most, weights):
    """Enough to be taken, or half of what may wait."""
    queue = GatherQueue[int](most, together=10, seconds=240.0)
    taken = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    queue.add(0, weights[0])
    thread.join(0.05)
    assert thread.is_alive()
    queue.add(1, weights[1])
    thread.join(240)
    assert taken == [[0, 1]]


def test_the_first_waits_no_longer_than_is_said():
    queue = GatherQueue[int](100, together=10, seconds=0.01)
    queue.add(0, 1)
    assert queue.take() == [0]


def test_a_closed_queue_gives_what_waits_without_delay_and_takes_no_more():
    queue = GatherQueue[int](100, together=1, seconds=240.0)
    queue.add(0, 1)
    queue.add(1, 1)
    queue.close()
    assert not queue.add(2, 1)
    assert (queue.take(), queue.ended) == ([0], False)
    assert (queue.take(), queue.ended) == ([1], True)
    assert queue.take() == []


def test_closing_wakes_a_thread_that_waits():
    queue, taken = GatherQueue[int](100, together=1, seconds=240.0), []
    thread = threading.Thread(target=lambda: taken.append(queue.take()))
    thread.start()
    queue.close()
    thread.join(240)
    assert taken == [[]]


def test_what_is_cleared_is_weighed_and_makes_room():
    queue = GatherQueue[int](10, together=10, seconds=0.0)
    queue.add(0, 4)
    queue.add(1, 5)
    assert (queue.clear(), queue.clear()) == (9, 0)
    assert queue.add(2, 10)
    assert queue.take() == [2]


def test_many_callers_lose_nothing_and_keep_their_order():
    queue = GatherQueue[tuple[int, int]](50, together=7, seconds=1e-3)
    refused, taken = [], []

    def call(caller):
        draw = random.Random(caller)
        refused.extend(
            (caller, number)
            for number in range(500)
            if not queue.add((caller, number), draw.randint(1, 9))
        )

    def work():
        while pieces := queue.take():
            taken.extend(pieces)

    worker = threading.Thread(target=work)
    callers = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in (worker, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    queue.close()
    worker.join(240)
    assert sorted(taken + refused) == [(c, n) for c in range(4) for n in range(500)]
    for caller in range(4):
        numbers = [number for one, number in taken if one == caller]
        assert numbers == sorted(numbers)
