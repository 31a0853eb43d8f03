"""Funnels: from conditional logits to joint ones (ESMM).

Ma et al., Entire Space Multi-Task Model, 2018, section 2.2: a task that is `given: click` has a
tower for P(task | click), and the product P(click) P(task | click) is fitted to the labels of all
impressions.  So the tower is not biased towards the impressions that were clicked, and the rare
task learns from the frequent one.  Loss, metrics, calibration and the exported graph read the
logits of the product only, so that no conditional score can be served.
"""

from collections.abc import Mapping

import keras

from multigate.configs.contract import Contract
from multigate.model.gates.parts.base import Tensor


def both(a: Tensor, b: Tensor) -> Tensor:
    """Logit of sigmoid(a) sigmoid(b), of the same shape.

    With p the product, (1 - p) / p = (1 + e^-a)(1 + e^-b) - 1 = e^-a + e^-b + e^-(a + b), so that

        logit(p) = -logsumexp(-a, -b, -a - b)

    which neither overflows nor cancels.
    """
    return -keras.ops.logsumexp(keras.ops.stack([-a, -b, -a - b]), axis=0)


def joint(contract: Contract, logits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Logits (B,) by task; those of tasks with a `given` become those of the product."""
    found = dict(logits)
    for name in contract.tasks_in_order():  # `given` first, so that chains multiply up
        given = contract.tasks[name].given
        if given is not None:
            found[name] = both(found[name], found[given])
    return found
