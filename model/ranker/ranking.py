"""Ranking terms: order within a request, beside each row's own loss.

Cross entropy over all rows is mostly won by what tells users or hours apart, which changes no order
within a request.  A ranking term compares the rows of one request only, so that it sees nothing but
what tells candidates apart.  With z the logits of one binary task and a request's labelled rows,

    listwise   -mean over positives i of (z_i - log sum over the request's rows j of e^z_j)
               (ListNet, Cao et al. 2007)
    pairwise   mean over pairs (i positive, j negative) of log(1 + e^(z_j - z_i))
               (RankNet, Burges et al. 2005)

and the term is the mean over the requests that have both labels, each with the mean weight of its
rows.  The rows of a request must follow one another in the batch (`model.data.feeds` sees to it);
a request that the batch cuts is two requests.

TensorFlow Ranking was considered: it is built on Keras 2, and its losses need padded lists.
"""

import keras

from multigate.configs.sections.model import Ranking
from multigate.model.gates.parts.base import Tensor


def ranking_term(
    options: Ranking, logits: Tensor, targets: Tensor, weights: Tensor, requests: Tensor
) -> Tensor:
    """The term of one task over a batch, a scalar; 0 where no request has both labels.

    Args:
        options: which term.
        logits: (B,).
        targets: (B,) 0 or 1, NaN where masked.
        weights: (B,) the row's weight where there is a label, else 0.
        requests: (B,) integers; rows that follow one another and are equal are one request.
    """
    ops = keras.ops
    B = ops.shape(logits)[0]
    changes = ops.cast(requests[1:] != requests[:-1], "int32")
    request = ops.concatenate([ops.zeros((1,), "int32"), ops.cumsum(changes)])[:B]  # (B,)
    known = ops.cast(weights > 0, logits.dtype)
    positive = known * ops.cast(targets == 1, logits.dtype)
    loss = {"listwise": _listwise, "pairwise": _pairwise}[options.kind]

    def total(values: Tensor) -> Tensor:
        return ops.segment_sum(values, request, num_segments=B)

    sums, counts = loss(options, logits, positive, known, request, B)
    sums, counts = total(sums), total(counts)
    weight = total(weights) / ops.maximum(total(known), 1.0)
    both = (total(positive) > 0) & (total(known - positive) > 0) & (counts > 0)
    weight = ops.where(both, weight, 0.0)
    of_requests = ops.sum(weight * sums / ops.maximum(counts, 1.0))
    whole = ops.sum(weight)
    return of_requests / ops.where(whole > 0, whole, 1.0)


def _listwise(
    options: Ranking, z: Tensor, positive: Tensor, known: Tensor, request: Tensor, B: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses of the positive rows (B,), and which rows they are (B,)."""
    ops = keras.ops
    kept = ops.where(known > 0, z, -1e30)
    top = ops.stop_gradient(ops.segment_max(kept, request, num_segments=B))
    shifted = kept - ops.take(top, request)
    powers = known * ops.exp(shifted)
    total = ops.take(ops.segment_sum(powers, request, num_segments=B), request)
    losses = ops.log(ops.maximum(total, 1e-30)) - shifted
    return ops.where(positive > 0, losses, 0.0), positive


def _pairwise(
    options: Ranking, z: Tensor, positive: Tensor, known: Tensor, request: Tensor, B: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums of the losses of each row's pairs with the rows after it, (B,), and their counts."""
    ops = keras.ops
    first = ops.arange(B)[:, None]
    second = first + ops.arange(1, options.neighbours + 1)[None, :]  # (B, W)
    inside = second < B
    second = ops.minimum(second, B - 1)
    sign = positive[:, None] - ops.take(positive, second)  # 1, 0 or -1
    paired = (
        inside
        & (ops.take(request, second) == request[:, None])
        & (ops.take(known, second) * known[:, None] > 0)
        & (sign != 0)
    )
    losses = ops.softplus(-sign * (z[:, None] - ops.take(z, second)))
    count = ops.cast(paired, z.dtype)
    return ops.sum(losses * count, axis=1), ops.sum(count, axis=1)
