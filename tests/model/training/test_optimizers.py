"""Our Adam is Keras's Adam, to rounding, and lazy only where it says so."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.training.optimizers import Adam

SHAPES = [(6, 4), (4,), ()]
OPTIONS = [
    {},
    {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)},
    {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 0.1},
    {"clipnorm": 0.1},
    {"global_clipnorm": 0.1},
    {"weight_decay": 0.1},
    {"gradient_accumulation_steps": 2},
    {"use_ema": True, "ema_overwrite_frequency": 3},
    {"amsgrad": True},
]


def variables():
    rng = np.random.default_rng(0)
    return [keras.Variable(rng.normal(size=shape).astype(np.float32)) for shape in SHAPES]


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return [tf.constant(rng.normal(size=shape), tf.float32) for shape in SHAPES]


def train(optimizer, steps=7, first=0, on=None, compiled=False):
    on = on or variables()
    optimizer.build(on)
    apply = tf.function(lambda *g: optimizer.apply(list(g), on)) if compiled else None
    for step in range(first, first + steps):
        if apply:
            apply(*gradients(step))
        else:
            optimizer.apply(gradients(step), on)
    return on


def assert_same(received, expected):
    for a, b in zip(received, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)  # variables are of order 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: next(iter(options), "default"))
def test_equals_keras(options, compiled):
    ours, theirs = Adam(**options), keras.optimizers.Adam(**options)
    assert_same(train(ours, compiled=compiled), train(theirs))
    assert_same(ours.variables, theirs.variables)


def test_one_step_by_hand():
    variable = keras.Variable(1.0)
    optimizer = Adam(learning_rate=0.1, epsilon=0.0)
    optimizer.build([variable])
    optimizer.apply([tf.constant(5.0)], [variable])
    # m = 0.5, v = 0.025; the corrections undo (1 - beta): 0.1 * 5 / sqrt(25) = 0.1.
    assert float(variable) == pytest.approx(0.9)


def test_resumes_from_saved_variables_and_config():
    whole = train(Adam(0.05), steps=6)
    first = Adam(0.05)
    half = train(first, steps=3)
    second = Adam.from_config(first.get_config())
    on = [keras.Variable(v) for v in half]
    second.build(on)
    for new, old in zip(second.variables, first.variables, strict=True):
        new.assign(old)
    assert_same(train(second, steps=3, first=3, on=on), whole)


def test_saved_model_keeps_the_optimizer(tmp_path):
    x, y = tf.random.stateless_normal((8, 3), (0, 1)), tf.ones((8, 1))
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(Adam(0.1, lazy=True), "mse")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, Adam)
    assert loaded.optimizer.lazy
    for each in (model, loaded):
        each.fit(x, y, epochs=2, shuffle=False, verbose=0)
    assert_same(loaded.get_weights(), model.get_weights())


def table(optimizer, batches, rows=5):
    """Train an embedding table on batches of row numbers, with one gradient per lookup."""
    variable = keras.Variable(np.ones((rows, 2), np.float32))
    optimizer.build([variable])
    for step, batch in enumerate(batches):
        values = tf.random.stateless_normal((len(batch), 2), (step, 0))
        gradient = tf.IndexedSlices(values, tf.constant(batch), tf.constant([rows, 2]))
        optimizer.apply([gradient], [variable])
    return variable.numpy()


def densely(optimizer, batches, rows=5):
    variable = keras.Variable(np.ones((rows, 2), np.float32))
    optimizer.build([variable])
    for step, batch in enumerate(batches):
        values = tf.random.stateless_normal((len(batch), 2), (step, 0))
        gradient = np.zeros((rows, 2), np.float32)
        np.add.at(gradient, batch, values.numpy())
        optimizer.apply([tf.constant(gradient)], [variable])
    return variable.numpy()


def test_embedding_rows_are_updated_as_a_dense_gradient_would():
    batches = [[0, 1, 1], [2, 2, 2], [0, 4]]  # rows seen twice sum their gradients
    expected = densely(keras.optimizers.Adam(0.1), batches)
    np.testing.assert_allclose(table(Adam(0.1), batches), expected, rtol=1e-5)


def test_lazy_leaves_untouched_rows_alone():
    batches = [[0, 1, 1], [2, 2], [2]]
    lazy, exact = table(Adam(0.1, lazy=True), batches), table(Adam(0.1), batches)
    np.testing.assert_array_equal(lazy[3:], np.ones((2, 2)))
    np.testing.assert_allclose(table(Adam(0.1, lazy=True), batches[:1])[:2], lazy[:2])
    assert not np.allclose(exact[:2], lazy[:2])  # momentum moves them on


def test_lazy_equals_exact_where_every_row_is_touched():
    batches = [[0, 1, 2, 3, 4, 4], [4, 3, 2, 1, 0, 0], [0, 1, 2, 3, 4, 1]]
    np.testing.assert_allclose(
        table(Adam(0.1, lazy=True), batches), table(Adam(0.1), batches), rtol=1e-5
    )


def test_refuses_lazy_amsgrad():
    with pytest.raises(ValueError, match=r"lazy: expected .* received .*amsgrad=True"):
        Adam(lazy=True, amsgrad=True)
