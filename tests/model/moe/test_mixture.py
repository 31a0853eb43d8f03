"""The mixture: sparse equals dense in values and gradients, and runs only what the gates weight."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from multigate.model import gates
from multigate.model.moe.experts import Expert, make_experts
from multigate.model.moe.mixture import Mixed, Mixture

B, D, E, U = 9, 5, 6, 4
HIERARCHY = {
    "num_groups": 2,
    "primary": {"name": "topk", "num_selected": 1},
    "secondary": {"name": "topk", "num_selected": 2},
}


@keras.saving.register_keras_serializable("multigate_tests")
class RowMask(keras.layers.Layer):
    """Dropout whose mask depends on the row's own content: the same mask however rows are cut."""

    def call(self, x):
        return x * 2.0 * keras.ops.cast(keras.ops.sin(1e3 * x) > 0, x.dtype)


class Counted(keras.layers.Layer):
    """Adds up the rows that it was run on."""

    def __init__(self, inner, **kwargs):
        super().__init__(**kwargs)
        self.inner = inner
        self.rows = tf.Variable(0)

    def build(self, input_shape):
        self.inner.build(input_shape)

    def call(self, x):
        self.rows.assign_add(tf.shape(x)[0])
        return self.inner(x)

    def compute_output_shape(self, input_shape):
        return self.inner.compute_output_shape(input_shape)


def make_gate(name, task, static=False, **options):
    k = 1 if name in ("hash", "sampled") else 2
    if name == "hierarchical":
        options |= HIERARCHY
    return gates.make(name, E, k, static, seed=task, **options)


def inputs(rows=B):
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(rows, D)), tf.float32)
    return x, tf.constant(rng.integers(0, 1000, rows))


def make(name, static=False, experts=None, **options):
    experts = experts or make_experts(E, [7, U], activation="tanh", seed=3)
    return Mixture(experts, [make_gate(name, task, static, **options) for task in range(2)])


def dense(mixture, x, routings):
    """Every expert on every row, as the definition says."""
    y = tf.stack([expert(x) for expert in mixture.experts], axis=1)  # (B, E, U)
    weights = [tf.broadcast_to(r.weights, (x.shape[0], E)) for r in routings]
    return [tf.einsum("be,beu->bu", w, y) for w in weights]


def assert_sparse_is_dense(mixture, x, ids):
    mixture(x, ids=ids)
    variables = [v.value for v in mixture.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        mixed = mixture(x, ids=ids, training=True)
        expected = dense(mixture, x, mixed.routings)
        loss = sum(tf.reduce_sum((t + 1) * tf.sin(y)) for t, y in enumerate(mixed.outputs))
        dense_loss = sum(tf.reduce_sum((t + 1) * tf.sin(y)) for t, y in enumerate(expected))
    for received, y in zip(mixed.outputs, expected, strict=True):
        np.testing.assert_allclose(received, y, atol=1e-5)
    zero = tf.UnconnectedGradients.ZERO
    received = tape.gradient(loss, [x, *variables], unconnected_gradients=zero)
    want = tape.gradient(dense_loss, [x, *variables], unconnected_gradients=zero)
    names = ["x", *(variable.path for variable in mixture.trainable_variables)]
    for name, a, b in zip(names, received, want, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5, err_msg=name)
    assert any(np.abs(g).max() > 0 for g in received)


def forms():
    """Every gate, in each form, static or per example, in which it exists."""
    for name in gates.names():
        for static in (False, True):
            try:
                make_gate(name, 0, static)
            except ValueError:
                continue
            yield name, static


def test_covers_every_gate():
    assert {name for name, _ in forms()} == set(gates.names())


@pytest.mark.parametrize(("name", "static"), list(forms()))
def test_sparse_equals_dense_in_values_and_gradients(name, static):
    assert_sparse_is_dense(make(name, static), *inputs())


@pytest.mark.parametrize(("name", "static"), list(forms()))
def test_a_row_does_not_depend_on_its_batch_at_inference(name, static):
    mixture = make(name, static)
    x, ids = inputs()
    together = tf.stack(mixture(x, ids=ids).outputs)  # (T, B, U)
    assert np.any(together)
    for rows in (slice(0, 1), slice(3, 7)):
        apart = mixture(x[rows], ids=ids[rows]).outputs
        np.testing.assert_allclose(apart, together[:, rows], rtol=1e-5, atol=1e-6)


def test_straight_through_zeros_keep_their_gradient():
    mixture = make("gumbel_softmax", static=True, hard=True, initial_probability=0.5)
    x, ids = inputs()
    weights = [r.weights for r in mixture(x, training=True).routings]
    assert any((w == 0).numpy().any() for w in weights)
    assert_sparse_is_dense(mixture, x, ids)


@pytest.mark.slow
def test_sparse_equals_dense_under_one_dropout_mask():
    experts = [
        keras.Sequential([keras.layers.Dense(7, "tanh"), RowMask(), keras.layers.Dense(U)])
        for _ in range(E)
    ]
    keras.utils.set_random_seed(0)
    assert_sparse_is_dense(make("topk", experts=experts), *inputs())


def test_evaluates_the_distinct_pairs_of_row_and_expert():
    mixture = make("topk", experts=[Counted(Expert([U], seed=e)) for e in range(E)])
    x, _ = inputs(40)
    mixture.build(x.shape)
    mixed = mixture(x)
    used = np.stack([r.weights for r in mixed.routings]) != 0  # (T, B, E)
    union = used.any(axis=0)
    assert union.sum() < used.sum()  # the tasks share evaluations in this batch
    assert [int(expert.rows) for expert in mixture.experts] == union.sum(axis=0).tolist()
    assert float(mixed.experts_per_row) == pytest.approx(union.sum() / 40)


def test_static_zeros_skip_the_expert_whole():
    mixture = make("topk", static=True, experts=[Counted(Expert([U], seed=e)) for e in range(E)])
    x, _ = inputs()
    mixture.build(x.shape)
    for gate in mixture.gates:
        gate.bias.assign([0.0, 0.0, 5.0, 0.0, 6.0, 0.0])
    mixed = mixture(x)
    assert [int(expert.rows) for expert in mixture.experts] == [0, 0, B, 0, B, 0]
    assert float(mixed.experts_per_row) == 2


@pytest.mark.sweep(1)
@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("name", ["topk", "dselect_k"])
def test_small_batches(rows, name):
    mixture = make(name)
    x, ids = inputs(rows)

    @tf.function(input_signature=[tf.TensorSpec((None, D))])
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(y) for y in mixture(x, training=True).outputs)
        return tape.gradient(loss, variables)

    mixture(inputs()[0])
    variables = [e.stack[0].kernel.value for e in mixture.experts]
    for gradient in gradients(x):
        assert gradient.shape == (D, 7)
        assert np.isfinite(gradient).all()
        if rows == 0:
            assert not np.any(gradient)
    mixed = mixture(x, ids=ids)
    assert [y.shape for y in mixed.outputs] == [(rows, U)] * 2
    assert np.isfinite(mixed.experts_per_row)


@pytest.mark.slow
def test_dynamic_batch_has_static_width():
    mixture = make("topk")
    concrete = tf.function(lambda x: mixture(x).outputs).get_concrete_function(
        tf.TensorSpec((None, D))
    )
    assert [y.shape.as_list() for y in concrete.outputs] == [[None, U]] * 2


def test_convolutional_experts():
    experts = [
        keras.Sequential(
            [
                keras.layers.Conv2D(3, 3, activation="relu"),
                keras.layers.MaxPooling2D(2),
                keras.layers.Flatten(),
                keras.layers.Dense(U),
            ]
        )
        for _ in range(E)
    ]
    keras.utils.set_random_seed(1)
    mixture = make("topk", experts=experts)
    images = tf.random.stateless_normal((7, 8, 8, 2), (0, 1))
    context = tf.random.stateless_normal((7, D), (2, 3))
    with tf.GradientTape(persistent=True) as tape:
        mixed = mixture(images, gate_input=context)
        y = tf.stack([expert(images) for expert in mixture.experts], axis=1)
        expected = [tf.einsum("be,beu->bu", r.weights, y) for r in mixed.routings]
        losses = [tf.reduce_sum(tf.sin(tf.stack(o))) for o in (mixed.outputs, expected)]
    np.testing.assert_allclose(mixed.outputs, expected, atol=1e-5)
    weights = [v.value for v in mixture.trainable_variables]
    for a, b in zip(*(tape.gradient(loss, weights) for loss in losses), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    empty = mixture(images[:0], gate_input=context[:0])
    assert [y.shape for y in empty.outputs] == [(0, U)] * 2


def test_experts_with_outputs_of_higher_rank():
    experts = [keras.layers.Conv2D(3, 3) for _ in range(E)]
    mixture = make("topk", experts=experts)
    mixed = mixture(tf.ones((5, 8, 8, 2)), gate_input=tf.ones((5, D)))
    assert [y.shape for y in mixed.outputs] == [(5, 6, 6, 3)] * 2


def test_dropout_is_active_in_training_only():
    mixture = make("topk", experts=make_experts(E, [U], dropout=0.5, seed=0))
    x, _ = inputs()
    first, second = (mixture(x, training=False).outputs[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    first, second = (mixture(x, training=True).outputs[0] for _ in range(2))
    assert not np.array_equal(first, second)


def test_experts_of_one_seed_differ_from_each_other():
    first, again = (make_experts(3, [D, D], dropout=0.5, seed=7) for _ in range(2))
    x = tf.ones((1, D))
    for expert in [*first, *again]:
        expert(x)
    kernels = [layer.kernel.numpy() for expert in first for layer in expert.stack[::2]]
    for i, kernel in enumerate(kernels):
        for other in kernels[:i]:
            assert not np.allclose(kernel, other)
    ones = tf.ones((1, 64))
    masks = [e.stack[i](ones, training=True).numpy() for e in first for i in (1, 3)]
    assert len({mask.tobytes() for mask in masks}) == 6
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a.stack[0].kernel, b.stack[0].kernel)


def test_round_trip_of_config_and_weights(tmp_path):
    mixture = make("topk", experts=make_experts(E, [7, U], dropout=0.1, seed=0))
    x, _ = inputs()
    expected = mixture(x)
    copy = Mixture.from_config(mixture.get_config())
    copy.build(x.shape)
    copy.set_weights(mixture.get_weights())
    np.testing.assert_array_equal(copy(x).outputs, expected.outputs)

    model = keras.Sequential([keras.Input((D,)), Tower(mixture)])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras", {"Tower": Tower})
    np.testing.assert_array_equal(loaded(x), model(x))


class Tower(keras.layers.Layer):
    """A layer with a mixture inside, as a model has."""

    def __init__(self, mixture, **kwargs):
        super().__init__(**kwargs)
        self.mixture = mixture

    def build(self, input_shape):
        self.mixture.build(input_shape)

    def call(self, x, training=False):
        return sum(self.mixture(x, training=training).outputs)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], U)

    def get_config(self):
        return super().get_config() | {"mixture": keras.saving.serialize_keras_object(self.mixture)}

    @classmethod
    def from_config(cls, config):
        config["mixture"] = keras.saving.deserialize_keras_object(config["mixture"])
        return cls(**config)


@pytest.mark.slow
def test_fit_and_predict_with_keras():
    x, _ = inputs(64)
    model = keras.Sequential([Tower(make("topk")), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    y = tf.reduce_sum(x, axis=1)
    losses = model.fit(x, y, epochs=3, batch_size=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert not model.jit_compile
    np.testing.assert_allclose(model.predict(x, verbose=0), model(x), atol=1e-5)


def test_half_precision_experts():
    experts = [keras.layers.Dense(U, dtype="mixed_bfloat16") for _ in range(E)]
    mixed = make("topk", experts=experts)(inputs()[0])
    assert isinstance(mixed, Mixed)
    assert mixed.outputs[0].dtype == mixed.routings[0].weights.dtype == tf.float32


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (keras.layers.BatchNormalization(), "mixes the rows"),
        (keras.layers.LayerNormalization(axis=0), "mixes the rows"),
        (keras.layers.UnitNormalization(axis=0), "mixes the rows"),
        (keras.layers.Softmax(axis=0), "mixes the rows"),
        (keras.layers.Dense(U, activity_regularizer="l2"), "activity regulariser"),
        (keras.Sequential([keras.layers.BatchNormalization(name="inner")]), "'inner'"),
    ],
)
def test_refuses_experts_that_mix_rows(layer, reason):
    experts = [Expert([U]), keras.Sequential([keras.layers.Dense(U), layer], name="mixer")]
    with pytest.raises(ValueError, match=r"expert 'mixer' contains") as error:
        Mixture(experts, [gates.make("softmax", 2)])
    assert reason in str(error.value)


@pytest.mark.parametrize(
    "layer", [keras.layers.Softmax(axis=-2), keras.layers.Softmax(axis=(-2, -1))]
)
def test_refuses_a_negative_axis_that_is_the_batch(layer):
    # Which axis -2 is, only the input's rank tells: rows for (B, D), a feature axis for (B, H, W).
    experts = [keras.Sequential([keras.Input((D,)), keras.layers.Dense(U), layer])]
    with pytest.raises(ValueError, match=r"contains Softmax .*mixes the rows"):
        Mixture(experts, [gates.make("softmax", 1)])
    late = Mixture(
        [keras.Sequential([keras.layers.UnitNormalization(axis=-2)])], [gates.make("softmax", 1)]
    )
    with pytest.raises(ValueError, match=r"contains UnitNormalization .*mixes the rows"):
        late(inputs()[0])
    by_column = [keras.Sequential([keras.Input((3, D)), keras.layers.Softmax(axis=-2)])]
    Mixture(by_column, [gates.make("softmax", 1)])


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x - keras.ops.mean(x, axis=0),
        lambda x: x - keras.ops.max(x, axis=-2),
        lambda x: x / keras.ops.sum(x),  # over all axes
        lambda x: keras.ops.softmax(x, axis=0),
    ],
)
def test_refuses_operations_of_a_functional_expert_that_mix_rows(operation):
    x = keras.Input((D,))
    inner = keras.Model(x, operation(x))
    for expert in (inner, keras.Sequential([inner, keras.layers.Dense(U)])):
        with pytest.raises(ValueError, match="mixes the rows"):
            Mixture([expert], [gates.make("softmax", 1)])
    Mixture([keras.Model(x, x - keras.ops.mean(x, axis=1)[:, None])], [gates.make("softmax", 1)])


def test_refuses_a_nested_mixture_whose_gate_depends_on_the_batch():
    gate = gates.make("expert_choice", 2, 1)
    nested = Tower(Mixture([Expert([U]), Expert([U])], [gate]))
    with pytest.raises(ValueError, match=r"ExpertChoice.*by the other rows"):
        Mixture([nested], [gates.make("softmax", 1)])


def test_layer_normalisation_is_row_wise():
    experts = [
        keras.Sequential([keras.layers.Dense(U), keras.layers.LayerNormalization()])
        for _ in range(E)
    ]
    keras.utils.set_random_seed(2)
    assert_sparse_is_dense(make("topk", experts=experts), *inputs())


def test_refuses_an_expert_of_another_shape():
    mixture = Mixture(
        [Expert([4], name="first"), Expert([3], name="odd")], [gates.make("softmax", 2)]
    )
    message = r"expected output shape \(9, 4\).*'first'; expert 'odd' has \(9, 3\)"
    with pytest.raises(ValueError, match=message):
        mixture(inputs()[0])


@pytest.mark.parametrize(
    ("experts", "gate_list", "message"),
    [
        ([], [gates.make("softmax", 2)], "experts: expected at least one"),
        ([Expert([1]), Expert([1])], [], "gates: expected at least one"),
        ([Expert([1])], [gates.make("softmax", 2)], "expected num_experts=1.* has 2"),
        # A shared gate would draw, and count its schedule's steps, once for each task.
        ([Expert([1], name="one")] * 2, [gates.make("softmax", 2)], "experts: .*'one' twice"),
        ([Expert([1])], [gates.make("softmax", 1)] * 2, "gates: .* twice"),
    ],
)
def test_refuses_what_does_not_fit_together(experts, gate_list, message):
    with pytest.raises(ValueError, match=message):
        Mixture(experts, gate_list)


def test_refuses_inputs_of_different_batches():
    x, ids = inputs()
    for rows in (1, 4):  # one row would broadcast
        with pytest.raises(ValueError, match=rf"gate_input: expected {B} rows.* received {rows}"):
            make("topk")(x, gate_input=x[:rows])
        with pytest.raises(ValueError, match=rf"ids: expected {B} rows.* received {rows}"):
            make("hash")(x, ids=ids[:rows])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": []}, r"units: expected at least one width >= 1, received \[\]"),
        ({"units": [4, 0]}, r"units: .* received \[4, 0\]"),
        ({"units": [4], "dropout": 1.0}, r"dropout: expected a rate in \[0, 1\), received 1.0"),
    ],
)
def test_refuses_bad_expert_options(options, message):
    with pytest.raises(ValueError, match=message):
        Expert(**options)


def test_refuses_no_experts():
    with pytest.raises(ValueError, match="num_experts: expected at least 1, received 0"):
        make_experts(0, [4])


@pytest.mark.slow
def test_survives_export_with_any_batch_size(tmp_path):
    mixture = make("topk")
    x, _ = inputs()
    expected = mixture(x).outputs
    archive = keras.export.ExportArchive()
    archive.track(mixture)
    archive.add_endpoint("serve", lambda x: mixture(x).outputs, [tf.TensorSpec((None, D))])
    archive.write_out(str(tmp_path / "export"), verbose=False)
    loaded = tf.saved_model.load(str(tmp_path / "export"))
    serve = loaded.serve
    np.testing.assert_allclose(serve(x), expected, atol=1e-5)
    assert [y.shape for y in serve(x[:0])] == [(0, U)] * 2


def test_refuses_an_output_of_unknown_shape():
    mixture = Mixture([keras.layers.Conv1D(3, 2)], [gates.make("softmax", 1)])
    with pytest.raises(ValueError, match=r"expected a known output shape.*\(None, None, 3\)"):
        mixture.build((None, None, 2), (None, D))
