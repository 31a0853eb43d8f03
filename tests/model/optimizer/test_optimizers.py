"""Our Adam is Keras's Adam, to rounding, and updates rows alone only where it is told to."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model.checkpoints import checkpoint, weights
from multigate.model.data.encoding import Encoder
from multigate.model.optimizer import row_adam
from multigate.model.optimizer.optimizers import Adam, LossScaling, averaged, make_optimizer

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
    model.compile(Adam(0.1, average=0.5), "mse")
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.optimizer, Adam)
    assert loaded.optimizer.average == 0.5
    for each in (model, loaded):
        each.fit(x, y, epochs=2, shuffle=False, verbose=0)
    assert_same(loaded.get_weights(), model.get_weights())


def table(optimizer, batches, rows=5, of_rows=True, compiled=False, multiplier=None):
    """Train an embedding table on batches of row numbers, with one gradient per lookup."""
    variable = keras.Variable(np.ones((rows, 2), np.float32))
    if multiplier is not None:
        optimizer.multiply_rate(variable, *multiplier)
    if of_rows:
        optimizer.update_rows([variable])
    optimizer.build([variable])

    def step(values, numbers):
        optimizer.apply([tf.IndexedSlices(values, numbers, tf.constant([rows, 2]))], [variable])

    if compiled:
        step = tf.function(step, reduce_retracing=True)
    for number, batch in enumerate(batches):
        step(tf.random.stateless_normal((len(batch), 2), (number, 0)), tf.constant(batch))
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


def test_without_update_rows_a_table_is_updated_as_a_dense_gradient_would():
    batches = [[0, 1, 1], [2, 2, 2], [0, 4]]  # rows seen twice sum their gradients
    expected = densely(keras.optimizers.Adam(0.1), batches)
    found = table(Adam(0.1), batches, of_rows=False)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_row_of_every_batch_moves_as_under_dense_adam(compiled):
    batches = [[0, 1, 2, 3, 4, 4], [4, 3, 2, 1, 0, 0], [0, 1, 2, 3, 4, 1]] * 4
    expected = densely(keras.optimizers.Adam(0.1), batches)
    np.testing.assert_allclose(
        table(Adam(0.1), batches, compiled=compiled), expected, rtol=1e-5, atol=1e-6
    )


def test_a_row_moves_as_under_adam_over_its_own_batches():
    """Row 3 comes in batches 1, 50 and 51 of 60: three steps of Adam."""
    batches = [[3, number % 3] if number in (1, 50, 51) else [number % 3] for number in range(60)]
    found = table(Adam(0.1), batches)[3]
    alone = keras.Variable(np.ones(2, np.float32))
    theirs = keras.optimizers.Adam(0.1)
    theirs.build([alone])
    for number in (1, 50, 51):
        theirs.apply([tf.random.stateless_normal((2, 2), (number, 0))[0]], [alone])
    np.testing.assert_allclose(found, alone, rtol=1e-5)


@pytest.mark.slow
def test_a_row_that_comes_once_moves_by_one_learning_rate_however_late():
    late = [[0]] * 2000 + [[1]]
    moved = np.abs(table(Adam(0.1), late, compiled=True)[1] - 1)
    np.testing.assert_allclose(moved, 0.1, rtol=1e-3)
    # Dense Adam: sqrt(1 - 0.999^2001) (1 - 0.9) / sqrt(1 - 0.999) = 2.9 learning rates at once.
    moved = np.abs(table(Adam(0.1), late, of_rows=False, compiled=True)[1] - 1)
    np.testing.assert_allclose(moved, 0.294, rtol=0.02)


def test_rows_that_are_not_in_the_batch_stay_as_they_are():
    batches = [[0, 1, 1], [2, 2], [2]]
    np.testing.assert_array_equal(table(Adam(0.1), batches)[3:], np.ones((2, 2)))
    np.testing.assert_array_equal(table(Adam(0.1), batches[:1])[:2], table(Adam(0.1), batches)[:2])


@pytest.mark.parametrize(
    "option", [{"amsgrad": True}, {"clipnorm": 1.0}, {"gradient_accumulation_steps": 2}]
)
def test_options_that_read_whole_tables_are_refused(option):
    name, value = next(iter(option.items()))
    with pytest.raises(ValueError, match=f"{name}: expected none .* received {value}"):
        Adam(**option).update_rows([])


@pytest.mark.parametrize("multiplier", [None, (3.0, 2)])
def test_loss_scaling_leaves_row_updates_as_they_are(multiplier):
    batches = [[0, 1, 1], [2, 2, 2], [0, 4]]
    expected = table(Adam(0.1), batches, multiplier=multiplier)

    def scaled(gradient):
        return tf.IndexedSlices(gradient.values * 2.0**15, gradient.indices, gradient.dense_shape)

    variable = keras.Variable(np.ones((5, 2), np.float32))
    inner = Adam(0.1)
    inner.update_rows([variable])
    if multiplier is not None:
        inner.multiply_rate(variable, *multiplier)
    optimizer = LossScaling(inner)
    optimizer.build([variable])

    @tf.function(reduce_retracing=True)
    def step(values, numbers):
        gradient = tf.IndexedSlices(values, numbers, tf.constant([5, 2]))
        optimizer.apply([scaled(gradient)], [variable])

    for number, batch in enumerate(batches):
        step(tf.random.stateless_normal((len(batch), 2), (number, 0)), tf.constant(batch))
    np.testing.assert_allclose(variable, expected, rtol=1e-6)
    rows = tf.constant([0]), tf.constant([[np.inf, 1.0]])
    step(rows[1], rows[0])
    np.testing.assert_allclose(variable, expected, rtol=1e-6)  # a step that is left out
    assert float(optimizer.dynamic_scale) == 2.0**14
    # Keras's looks for infinity in an array that is as large as the table.
    graph = step.get_concrete_function(rows[1], rows[0]).graph
    assert "TensorScatterUpdate" not in {operation.type for operation in graph.get_operations()}


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.9, 0.99])
def test_what_is_kept_of_an_average_is_the_product_over_the_steps(decay):
    weights = [0.0, *(min(decay, (1 + j) / (10 + j)) for j in range(1, 1500))]
    for last in (0, 1, 5, 40, 1499):
        firsts = np.array([0, 1, 2, 7, 30, 700, 1499, last, last + 1], np.float32)
        expected = [np.prod(weights[int(first) : last + 1]) for first in firsts]
        found = row_adam.kept(firsts, np.int32(last), decay)
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-30)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_averages_of_rows_are_those_of_an_update_at_every_step(compiled):
    batches = [[0, 1], [1, 1, 2], [2], [1], [0], [1], [1], [1]]
    weights, expected = [], None
    for step in range(len(batches)):
        weights.append(table(Adam(0.1), batches[: step + 1]))
        keep = 0.0 if step == 0 else min(0.5, (1 + step) / (10 + step))
        expected = weights[-1] + keep * ((weights[-1] if step == 0 else expected) - weights[-1])
    optimizer = Adam(0.1, average=0.5)
    table(optimizer, batches, compiled=compiled)
    on = optimizer._trainable_variables
    np.testing.assert_allclose(on[0], weights[-1], rtol=1e-6)  # averaging changes no training
    with averaged(optimizer, on):
        np.testing.assert_allclose(on[0], expected, rtol=1e-5)
        np.testing.assert_array_equal(on[0][3:], np.ones((2, 2)))  # never in a batch
    np.testing.assert_array_equal(on[0], weights[-1])
    with averaged(optimizer, on):  # and again, with no step between
        np.testing.assert_allclose(on[0], expected, rtol=1e-5)


def test_moments_in_bfloat16_are_rounded_without_bias():
    """To the nearest, a second moment would stay where it is: 0.999 v rounds to v."""
    optimizer = Adam(0.01, moments="bfloat16")
    on = keras.Variable(np.zeros((1, 512), np.float32))
    optimizer.update_rows([on])
    optimizer.build([on])
    assert optimizer.tables["0"].variable.shape == (1, 1 + 512)  # both moments in one number
    ones = tf.ones((1, 512))
    step = tf.function(
        lambda size: optimizer.apply([tf.IndexedSlices(size * ones, [0], [1, 512])], [on])
    )
    step(tf.constant(1.0))
    for _ in range(600):
        step(tf.constant(0.0))
    found = optimizer.tables["0"].read(np.array([0])).v.numpy().mean()
    assert found == pytest.approx(0.001 * 0.999**600, rel=0.03)  # 0.00055
    plain = table(Adam(0.1), [[0, 1], [1, 2], [0, 0]])
    rounded = table(Adam(0.1, moments="bfloat16"), [[0, 1], [1, 2], [0, 0]])
    np.testing.assert_allclose(rounded, plain, atol=0.01)
    assert (rounded != plain).any()


@pytest.mark.parametrize("of_rows", [False, True])
def test_a_rows_gradients_are_summed_before_they_are_clipped(of_rows):
    """(1, 0) and (2, 0) on one row are a gradient of norm 3, not of sqrt(5)."""
    optimizer = Adam(0.1, global_clipnorm=1.5)
    table = keras.Variable(np.zeros((3, 2), np.float32))
    other = keras.Variable(np.zeros(2, np.float32))
    if of_rows:
        optimizer.update_rows([table])
    optimizer.build([table, other])
    values = tf.constant([[1.0, 0.0], [2.0, 0.0]])
    rows = tf.IndexedSlices(values, tf.constant([1, 1]), tf.constant([3, 2]))
    optimizer.apply([rows, tf.constant([0.0, 4.0])], [table, other])
    # The norm is sqrt(3^2 + 4^2) = 5; all is multiplied by 1.5 / 5, and m is a tenth of it.
    found = optimizer.tables["0"].read(np.arange(3)).m if of_rows else optimizer._momentums[0]
    np.testing.assert_allclose(found, [[0, 0], [0.09, 0], [0, 0]], rtol=1e-6)
    np.testing.assert_allclose(optimizer._momentums[1], [0, 0.12], rtol=1e-6)
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


@pytest.mark.slow
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


def step_once(tiny, gradient, model, train):
    """A ranker whose gradients are all the same number, and its weights before and after a step."""
    config = tiny.make_config(model=tiny.config.model.model_dump() | model, train=train)
    encoder = Encoder.read(tiny.examples)
    ranker = checkpoint.make_ranker(config.contract, config.model, encoder, seed=1)
    on = ranker.trainable_variables
    optimizer = make_optimizer(config.train, 1000, ranker=ranker)
    optimizer.build(on)
    before = weights.copy(ranker)
    optimizer.apply([tf.fill(v.shape, gradient) for v in on], on)
    return ranker, before, weights.copy(ranker)


def test_weight_decay_shrinks_the_kernels_of_experts_and_towers_alone(tiny):
    gates = {"dwell": {"name": "noisy_topk", "num_selected": 2}}
    train = {"weight_decay": 0.5, "learning_rate": 0.1}
    _, before, after = step_once(tiny, 0.0, {"gates": gates}, train)
    decayed = {name for name in before if (before[name] != after[name]).any()}
    assert decayed == {
        name
        for name, value in before.items()
        if name.startswith(("experts/", "towers/")) and value.ndim == 2
    }
    assert len(decayed) == 4 + 2 * 3  # of four experts and three towers with a hidden layer
    for name in decayed:  # the share lr * decay, and no gradient
        np.testing.assert_allclose(after[name], 0.95 * before[name], rtol=1e-5)


@pytest.mark.parametrize("of_rows", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_multiplied_rate_is_that_of_another_optimizer(of_rows, compiled):
    """Rows from 2 on have it; the others have that of the optimiser."""
    batches = [[0, 1, 1], [2, 2, 2], [0, 4], [3, 0, 2]]
    how = {"of_rows": of_rows, "compiled": compiled}
    found = table(Adam(0.02, average=0.9), batches, multiplier=(5.0, 2), **how)
    slow, fast = (table(Adam(rate, average=0.9), batches, **how) for rate in (0.02, 0.1))
    np.testing.assert_allclose(found[:2], slow[:2], rtol=1e-5)
    np.testing.assert_allclose(found[2:], fast[2:], rtol=1e-5)


@pytest.mark.parametrize("embeddings", ["rows", "dense"])
def test_the_weights_of_pairs_move_further_and_no_others(tiny, embeddings):
    def moved(rate):
        wide = {"crosses": 2**20, "crosses_rate": rate}
        train = {"embeddings": embeddings, "weight_decay": 0.0, "learning_rate": 0.01}
        ranker, before, after = step_once(tiny, 1.0, {"wide": wide}, train)
        assert ranker.wide.crosses
        return ranker.wide.crosses, {name: after[name] - before[name] for name in before}

    (crosses, once), (_, further) = moved(1.0), moved(8.0)
    of_pairs = [name for name in once if name.startswith("wide/") and name[5:] in crosses]
    assert len(of_pairs) == len(crosses)
    for name in once:
        factor = 8.0 if name in of_pairs else 1.0
        np.testing.assert_allclose(further[name], factor * once[name], rtol=1e-3, atol=1e-6)
