"""The C interface: values both ways, faults, threads and the end of a session."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from multigate.runtime import session as session_module
from multigate.runtime.errors import (
    ModelRuntimeError,
    OutOfMemoryError,
    RefusedInputError,
    RunTimeoutError,
)
from multigate.runtime.session import Session, session_config
from multigate.runtime.tensors import MAX_BYTES

DTYPES = ["float32", "float64", "int32", "int64", "uint8", "bool", "float16", "complex64"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SavedModel that returns what it gets, in several ways."""
    folder = tmp_path_factory.mktemp("runtime") / "1"
    module = tf.Module()

    def texts(x):
        return {"same": x, "longer": tf.strings.join([x, "-" * 30]), "start": x[:1]}

    def slow(x):
        _, y = tf.while_loop(
            lambda i, y: i < x[0], lambda i, y: (i + 1, tf.sin(y) + 0.1), (0, tf.constant(0.5))
        )
        return {"y": y[None]}

    functions = {
        "texts": (texts, tf.TensorSpec([None], tf.string, "x")),
        "square": (lambda x: {"y": x * x}, tf.TensorSpec([None, None], tf.float32, "x")),
        "slow": (slow, tf.TensorSpec([1], tf.int32, "x")),
        "huge": (lambda x: {"y": tf.zeros(x)[:1]}, tf.TensorSpec([1], tf.int64, "x")),
        "fails": (
            lambda x: {"y": tf.debugging.check_numerics(x, "expected a number")},
            tf.TensorSpec([], tf.float32, "x"),
        ),
    }
    both = tf.function(lambda a, b: {"a": 2 * a, "b": b}, autograph=False)
    for name in DTYPES:
        functions[f"same/{name}"] = (
            lambda x: {"y": tf.identity(x)},
            tf.TensorSpec(None, name, "x"),
        )
    signatures = {
        name: tf.function(function, autograph=False).get_concrete_function(x=spec)
        for name, (function, spec) in functions.items()
    }
    signatures["both"] = both.get_concrete_function(
        a=tf.TensorSpec([None], tf.float32, "a"), b=tf.TensorSpec([None], tf.string, "b")
    )
    tf.saved_model.save(module, str(folder), signatures)
    return folder


@pytest.fixture(scope="module")
def session(folder):
    session = Session(folder)
    yield session
    session.close()


def runner(session, name):
    return session.runner(session.definitions[name])


def as_texts(values):
    array = np.empty(len(values), object)
    array[:] = values
    return array


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=40), max_size=30))
def test_texts_of_any_length_come_back(session, texts):
    longer, same, start = runner(session, "texts")(as_texts(texts))
    assert same.tolist() == texts
    assert longer.tolist() == [text + b"-" * 30 for text in texts]
    assert start.tolist() == texts[:1]


def test_texts_may_be_str_and_numpy_texts(session):
    run = runner(session, "texts")
    assert run(as_texts(["é", b"b"]))[1].tolist() == ["é".encode(), b"b"]
    assert run(np.array([b"one", b"b"]))[1].tolist() == [b"one", b"b"]
    assert run(np.array(["one", "é"]))[1].tolist() == [b"one", "é".encode()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_of_every_shape_come_back(session, dtype):
    run = runner(session, f"same/{dtype}")
    for shape in [(), (1,), (7,), (0,), (3, 0), (2, 3, 4), (40_000,), (5,)]:
        array = (np.arange(np.prod(shape, dtype=int)) % 100).astype(dtype).reshape(shape)
        (same,) = run(array)
        assert same.dtype == array.dtype
        assert same.shape == shape
        assert np.array_equal(same, array)


def test_an_array_need_not_be_contiguous(session):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    (found,) = runner(session, "square")(array[::2, ::3].T)
    assert found.tolist() == [[0, 144], [9, 225]]


@pytest.mark.parametrize(
    ("signature", "array", "message"),
    [
        ("texts", as_texts([3] * 4000), "'x': expected texts, received int"),
        ("square", np.zeros((2, 2)), "'x': expected dtype float32, received float64"),
        ("square", np.zeros(2, "f"), r"'x': expected shape \[\?, \?\], received \[2\]"),
        ("slow", np.zeros(2, "i"), r"'x': expected shape \[1\], received \[2\]"),
        ("texts", as_texts([b"a", 3]), "'x': expected texts, received int"),
        ("texts", np.zeros(2), "'x': expected dtype string, received float64"),
        ("fails", np.array(np.inf, "f"), "expected a number"),
    ],
)
def test_wrong_inputs_are_refused(session, signature, array, message):
    run = runner(session, signature)
    with pytest.raises(RefusedInputError, match=message):
        run(array)


def test_tensors_that_cannot_fit_are_refused(session):
    with pytest.raises(
        OutOfMemoryError, match="'x': expected a tensor of at most 4294967296 bytes"
    ):
        runner(session, "square")(np.broadcast_to(np.float32(1), (1, MAX_BYTES)))
    with pytest.raises(OutOfMemoryError, match="OOM when allocating"):
        runner(session, "huge")(np.array([1 << 50]))


def test_a_failure_leaves_the_signature_usable(session):
    run = runner(session, "square")
    assert run(np.array([[2]], "f"))[0].tolist() == [[4]]
    with pytest.raises(RefusedInputError):
        run(np.zeros(3, "f"))
    assert run(np.array([[3]], "f"))[0].tolist() == [[9]]


def test_tensors_of_few_shapes_are_kept(session):
    run = runner(session, "same/float32")
    for turn in range(3):
        for size in [*range(1, 20), 100_000]:
            array = np.arange(size, dtype=np.float32) + turn
            assert np.array_equal(run(array)[0], array)
    assert sorted(shape[0] for (shape,) in run._idle) == [*range(13, 20), 100_000]
    arrays = [np.arange(size, dtype=np.float32) for size in range(1, 100)]
    with ThreadPoolExecutor(8) as pool:
        for (same,), array in zip(pool.map(run, arrays), arrays, strict=True):
            assert np.array_equal(same, array)
    assert len(run._idle) <= 8


def test_large_texts_are_not_kept(session):
    run = runner(session, "both")
    number = np.array([1], np.float32)
    for size in (1 << 20, 10, 1 << 20):
        texts = as_texts([b"x" * size, b"y"])
        assert run(number, texts)[1].tolist() == texts.tolist()
        (kept,) = run._idle.values()
        assert len(kept._texts) == (size + 1 if size == 10 else 0)


def test_of_a_large_run_the_small_tensors_are_kept(session):
    run = runner(session, "both")
    for rows in (5000, 3, 5000, 6000, 5000):
        texts = as_texts([b"t%d" % row for row in range(rows)])
        number = np.array([rows], np.float32)
        assert [found.tolist() for found in run(number, texts)] == [[2.0 * rows], texts.tolist()]
        (kept,) = [inputs for shapes, inputs in run._idle.items() if shapes == ((1,), (rows,))]
        assert [tensor.memory.size for tensor in kept._tensors] == [64, 128 if rows == 3 else 0]
        assert len(kept._texts) < 100
    before = list(run._idle.values())
    run(number, texts)
    assert {id(inputs) for inputs in run._idle.values()} == {id(inputs) for inputs in before}


def test_a_run_ends_at_its_deadline(folder):
    session = Session(folder, (1, 1))
    run = runner(session, "slow")
    assert run(np.array([10], np.int32), timeout=120)[0].shape == (1,)
    with pytest.raises(RunTimeoutError):
        run(np.array([1 << 30], np.int32), timeout=0.05)
    assert run(np.array([10], np.int32))[0].shape == (1,)
    session.close()


def test_a_signature_of_tensors_that_the_graph_lacks_is_refused(session):
    definition = type(session.definitions["square"])()
    definition.CopyFrom(session.definitions["square"])
    definition.inputs["x"].name = "nothing:0"
    with pytest.raises(ModelRuntimeError, match="tensor 'nothing:0': expected in the graph"):
        session.runner(definition)
    definition.inputs["x"].name = session.definitions["square"].inputs["x"].name[:-1] + "7"
    with pytest.raises(ModelRuntimeError, match=":7': expected in the graph"):
        session.runner(definition)


def test_threads_run_at_once_and_keep_their_answers(session):
    run = runner(session, "texts")

    def call(place):
        for turn in range(40):
            texts = [b"%d-%d-%d" % (place, turn, n) * (n % 5) for n in range(1 + place * turn % 70)]
            assert run(as_texts(texts))[1].tolist() == texts
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(8)))


def test_a_session_closes_after_its_runs(folder):
    session = Session(folder)
    run = runner(session, "slow")
    started, outcomes = threading.Event(), []

    def call():
        started.set()
        outcomes.append(run(np.array([300_000], np.int32)))

    caller = threading.Thread(target=call)
    caller.start()
    started.wait()
    while not session._runs and not outcomes:
        pass
    session.close()
    caller.join()
    assert outcomes[0][0].shape == (1,)
    with pytest.raises(ModelRuntimeError, match="the session is closed"):
        run(np.array([1], np.int32))
    session.close()


THREADS = """
import os, sys
from pathlib import Path
from multigate.runtime.start import start_runtime

start_runtime()  # looks for devices with a session that asks for no number of threads
from multigate.runtime.session import Session

for threads in (1, 3, 1):
    before = len(os.listdir("/proc/self/task"))
    session = Session(Path(sys.argv[1]), (threads, -1))
    print(len(os.listdir("/proc/self/task")) - before)
    session.close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_a_session_has_the_threads_that_it_asks_for(folder):
    environment = {n: v for n, v in os.environ.items() if not n.startswith("TF_")}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.split() == ["1", "3", "1"]


def test_a_graph_in_parts_does_not_wait_for_itself(monkeypatch):
    """On a GPU a graph has a part for each device, which take turns on the calling thread."""
    one = "SINGLE_THREADED_EXECUTOR"
    assert session_config((1, -1)).experimental.executor_type == one
    assert session_config((1, 1)).experimental.executor_type == ""
    monkeypatch.setattr(session_module, "has_gpu", lambda: True)
    assert session_config((1, -1)).experimental.executor_type == ""
    monkeypatch.undo()
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_auto_jit=2")
    assert session_config((1, -1)).experimental.executor_type == ""


@pytest.mark.slow
def test_neither_runtime_nor_server_execute_tensorflow():
    code = (
        "import sys, multigate.serving.rpc.server, multigate.serving.workers.supervisor\n"
        "import multigate.serving.workers.worker\n"
        "from multigate.runtime.devices import has_gpu\n"
        "has_gpu()\n"
        "executed = {'tensorflow', 'tensorflow.python'} & set(sys.modules)\n"
        "assert not executed, executed\n"
        "import tensorflow as tf\n"
        "assert int(tf.constant(1) + 1) == 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
