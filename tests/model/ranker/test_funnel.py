"""Joint logits of funnels, against decimal arithmetic."""

from decimal import Decimal, getcontext
from typing import Any

import keras
import numpy as np
import pytest

from multigate.configs.errors import ConfigError, DataError
from multigate.model.data.funnels import check_labels
from multigate.model.ranker import funnel

getcontext().prec = 200


def numpy(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))


def tensor(values: Any) -> Any:
    return keras.ops.convert_to_tensor(np.asarray(values, np.float32))


def exact(a: float, b: float) -> float:
    """Logit of the product of two sigmoids, from the definitions, in 200 digits."""
    p = Decimal(1)
    for z in (a, b):
        p /= 1 + (-Decimal(z)).exp()
    return float((p / (1 - p)).ln())


def test_the_logit_of_a_product_of_sigmoids() -> None:
    # 1/2 * 1/2 = 1/4: odds 1/3.
    assert numpy(funnel.both(tensor([0.0]), tensor([0.0])))[0] == pytest.approx(np.log(1 / 3))
    rng = np.random.default_rng(0)
    grid = [-80.0, -20.0, -1.0, 0.0, 3.0, 20.0, 80.0]
    a, b = (np.float32(x).ravel() for x in np.meshgrid(grid, grid))
    a, b = (np.append(x, rng.normal(0, 8, 100).astype(np.float32)) for x in (a, b))
    found = numpy(funnel.both(tensor(a), tensor(b)))
    expected = [exact(float(x), float(y)) for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_its_gradient_is_finite_everywhere() -> None:
    if keras.backend.backend() != "tensorflow":
        pytest.skip("GradientTape is TensorFlow's")
    import tensorflow as tf

    a, b = tf.constant([-80.0, 80.0, 80.0, -80.0, 0.0]), tf.constant([80.0, -80.0, 80.0, -80.0, 0])
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        z = funnel.both(a, b)
    # dz/da = (1 - sigmoid(a)) / (1 - p): the factor that is near 0 takes all of the gradient.
    np.testing.assert_allclose(
        np.stack(tape.gradient(z, [a, b])),
        [[1, 0, 0.5, 1, 2 / 3], [0, 1, 0.5, 1, 2 / 3]],
        atol=1e-6,
    )


def chained(tiny: Any, **given: Any) -> Any:
    """Click, like and share, with some of `given`; `share` is a column label."""
    contract = tiny.config.contract.model_dump(mode="json")
    contract["tasks"]["share"] = contract["tasks"]["like"]
    for name, value in given.items():
        contract["tasks"][name] = contract["tasks"][name] | value
    return tiny.make_config(contract=contract)


def test_chains_multiply_up(tiny: Any) -> None:
    """Also where a task stands before the one that it is given."""
    config = chained(tiny, click={"given": "like"}, like={"given": "share"})
    z = {"click": 0.3, "dwell": 7.0, "like": -1.2, "share": 0.8}
    found = funnel.joint(config.contract, {name: tensor([value]) for name, value in z.items()})
    p = {name: 1 / (1 + np.exp(-value)) for name, value in z.items()}
    of_like = p["share"] * p["like"]
    for name, value in (("like", of_like), ("click", of_like * p["click"]), ("share", p["share"])):
        assert 1 / (1 + np.exp(-numpy(found[name])[0])) == pytest.approx(value, rel=1e-6)
    assert numpy(found["dwell"])[0] == 7.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"like": {"given": "share"}, "share": {"given": "like"}}, "refers to itself through"),
        ({"like": {"given": "share"}, "share": {"without": "like"}}, "refers to itself through"),
        ({"like": {"given": "like"}}, "given: expected the name of another binary task"),
        ({"like": {"given": "dwell"}}, "given: expected the name of another binary task"),
        ({"like": {"given": "buy"}}, "given: expected the name of another binary task"),
        ({"dwell": {"given": "like", "when": None}}, "given is for binary tasks"),
        ({"like": {"given": "click", "when": "click"}}, "given learns from all impressions"),
        (
            {"share": {"label": {"rule": "impression"}}, "like": {"given": "share"}},
            "the label 'share' of every logged impression is 1",
        ),
    ],
)
def test_wrong_funnels_are_refused(tiny: Any, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        chained(tiny, **given)


def test_a_funnel_is_part_of_the_schema_and_a_loss_is_not(tiny: Any) -> None:
    plain = chained(tiny).contract
    assert chained(tiny, like={"given": None}).contract.schema_fingerprint() == (
        plain.schema_fingerprint()
    )
    funnelled = chained(tiny, like={"given": "click"}).contract
    assert funnelled.schema_fingerprint() != plain.schema_fingerprint()
    huber = chained(tiny, dwell={"loss": "huber"}).contract
    assert huber.schema_fingerprint() == plain.schema_fingerprint()


def test_labels_that_contradict_a_funnel_are_refused_with_their_number(tiny: Any) -> None:
    contract = chained(tiny, like={"given": "click"}).contract
    with pytest.raises(DataError, match=r"train: task 'like' is given 'click'.* in \d+ rows"):
        check_labels(tiny.examples, "train", contract)
