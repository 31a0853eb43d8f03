"""Our Adam is Keras's Adam, to rounding, and lazy only where it says so."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.training.optimizers import Adam, averaged, make_optimizer

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


@pytest.mark.parametrize("lazy", [False, True])
def test_a_rows_gradients_are_summed_before_they_are_clipped(lazy):
    """(1, 0) and (2, 0) on one row are a gradient of norm 3, not of sqrt(5)."""
    optimizer = Adam(0.1, lazy=lazy, global_clipnorm=1.5)
    table = keras.Variable(np.zeros((3, 2), np.float32))
    other = keras.Variable(np.zeros(2, np.float32))
    optimizer.build([table, other])
    values = tf.constant([[1.0, 0.0], [2.0, 0.0]])
    rows = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([3, 2]))
    clipped, whole = optimizer._clip_gradients([rows, tf.constant([0.0, 4.0])])
    # The norm is sqrt(3^2 + 4^2) = 5; all is multiplied by 1.5 / 5.
    np.testing.assert_allclose(tf.convert_to_tensor(clipped), [[0, 0], [0.9, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(whole, [0, 1.2], rtol=1e-6)
    small = [tf.constant([0.3, 0.4]), None]
    assert optimizer._clip_gradients(small)[0].numpy().tolist() == small[0].numpy().tolist()


@pytest.mark.parametrize("compiled", [False, True])
def test_averages_follow_their_formula(compiled):
    plain, averaging = Adam(0.05), Adam(0.05, average=0.3)
    expected, steps = None, []
    for step in range(6):
        values = [np.array(v) for v in train(Adam(0.05), steps=step + 1)]
        decay = 0.0 if step == 0 else min(0.3, (1 + step) / (10 + step))
        if expected is None:
            expected = values
        else:
            expected = [decay * a + (1 - decay) * v for a, v in zip(expected, values, strict=True)]
        steps.append(decay)
    assert steps[1] == pytest.approx(2 / 11)
    assert steps[-1] == 0.3
    trained = train(averaging, steps=6, compiled=compiled)
    assert_same(trained, train(plain, steps=6))  # averaging does not change training
    assert_same([average.numpy() for average in averaging.averages], expected)


def test_averages_are_used_within_and_training_goes_on_without_them():
    optimizer = Adam(0.05, average=0.9)
    on = train(optimizer, steps=4)
    before = [v.numpy() for v in on]
    with averaged(optimizer, on):
        for variable, average in zip(on, optimizer.averages, strict=True):
            np.testing.assert_array_equal(variable, average)
            assert (variable.numpy() != before[0]).any() or variable.shape != before[0].shape
    for variable, value in zip(on, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    with averaged(Adam(0.05), on):  # without averages nothing changes
        np.testing.assert_array_equal(on[0], before[0])


def test_an_epochs_end_does_not_overwrite_what_was_trained():
    """Keras's `use_ema` does, at the end of every `fit`."""

    def fit(**options):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, "linear")])
        model.set_weights([np.ones((3, 1), np.float32), np.zeros(1, np.float32)])
        model.compile(Adam(0.1, **options), "mse")
        x = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
        for _ in range(2):
            model.fit(x, np.ones(32), batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    assert_same(fit(average=0.9), fit())
    assert np.abs(fit(use_ema=True)[0] - fit()[0]).max() > 1e-3


def test_weight_decay_shrinks_the_kernels_of_experts_and_towers_alone(tiny):
    gates = {"dwell": {"name": "noisy_topk", "num_selected": 2}}
    model = tiny.config.model.model_dump() | {"gates": gates}
    config = tiny.make_config(model=model, train={"weight_decay": 0.5, "learning_rate": 0.1})
    encoder = Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    on = ranker.trainable_variables
    optimizer = make_optimizer(config.train, 1000, ranker=ranker)
    optimizer.build(on)
    before = weights.copy(ranker)
    optimizer.apply([tf.zeros(v.shape) for v in on], on)
    after = weights.copy(ranker)
    decayed = {name for name in before if (before[name] != after[name]).any()}
    assert decayed == {
        name
        for name, value in before.items()
        if name.startswith(("experts/", "towers/")) and value.ndim == 2
    }
    assert len(decayed) == 4 + 2 * 3  # of four experts and three towers with a hidden layer
    for name in decayed:  # the share lr * decay, and no gradient
        np.testing.assert_allclose(after[name], 0.95 * before[name], rtol=1e-5)
