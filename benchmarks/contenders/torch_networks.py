"""Networks of PyTorch libraries: torch-rechub's MMoE, PLE and DIN, and TabM.

They share one loop of training: Adam, batches of 512, the losses of all tasks added with masked
labels left out, stopped two epochs after the best validation loss.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from table import Data, NetworkInputs, Predict, Rows, Targets

_BATCH, _EPOCHS, _PATIENCE, _AT_ONCE = 512, 12, 2, 4096

Probabilities = Callable[..., torch.Tensor]
"""What `NetworkInputs` gives of B rows, in its order, to (B, K, T): of each of K members, the
probability of binary tasks and the standardised value of others."""


def _fit(
    model: torch.nn.Module,
    forward: Probabilities,
    encode: NetworkInputs,
    data: Data,
    setting: dict[str, Any],
    seed: int,
) -> Predict:
    """Train a network, keep its best epoch on validation, and return its predictions."""
    targets = Targets(data)
    binary = torch.tensor(targets.binary)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=setting["rate"], weight_decay=setting["weight_decay"]
    )

    def inputs(rows: Rows) -> list[torch.Tensor]:
        return [torch.tensor(part) for part in encode(rows).values()]

    tensors = {
        split: [torch.tensor(targets(y)), *inputs(data.rows[split])] for split, y in data.y.items()
    }
    random = torch.Generator().manual_seed(seed)

    def loss(y: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        p = forward(*parts)
        known = torch.isfinite(y)
        y = torch.where(known, y, 0.0)[:, None, :].expand(p.shape)
        inside = p.clamp(1e-6, 1 - 1e-6)
        entropy = -(y * inside.log() + (1 - y) * (1 - inside).log())
        each = torch.where(binary, entropy, (y - p) ** 2).mean(dim=1)
        return ((each * known).sum(dim=0) / known.sum(dim=0).clamp(min=1)).sum()

    def validation_loss() -> float:
        model.eval()
        with torch.no_grad():
            parts = [part.split(_AT_ONCE) for part in tensors["validation"]]
            found = [(len(one[0]), float(loss(*one))) for one in zip(*parts, strict=True)]
        return sum(rows * one for rows, one in found) / sum(rows for rows, _ in found)

    best, kept, since = np.inf, copy.deepcopy(model.state_dict()), 0
    for _ in range(_EPOCHS):
        model.train()
        rows = torch.randperm(len(tensors["train"][0]), generator=random)
        for at in rows.split(_BATCH):
            optimizer.zero_grad()
            loss(*(part[at] for part in tensors["train"])).backward()
            optimizer.step()
        found = validation_loss()
        since += 1
        if found < best:
            best, kept, since = found, copy.deepcopy(model.state_dict()), 0
        if since == _PATIENCE:
            break
    model.load_state_dict(kept)
    model.eval()

    def predict(rows: Rows) -> dict[str, np.ndarray]:
        parts = [part.split(_AT_ONCE) for part in inputs(rows)]
        with torch.no_grad():
            found = [forward(*one).mean(dim=1).numpy() for one in zip(*parts, strict=True)]
        values = np.concatenate(found)
        return targets.scores(values, values)

    return predict


def _mean(table: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    """Mean embedding (B, D) of lists of ids (B, L), 0 behind the last."""
    inside = (ids > 0)[..., None]
    return (table(ids) * inside).sum(dim=1) / inside.sum(dim=1).clamp(min=1)


def _rechub(
    build: Callable[..., torch.nn.Module], data: Data, setting: dict[str, Any], seed: int
) -> Predict:
    from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature

    torch.manual_seed(seed)
    encode = NetworkInputs(data)
    ids = [
        SparseFeature(f"id{n}", vocab_size=size, embed_dim=setting["embedding_dim"])
        for n, size in enumerate(encode.sizes)
    ]
    lists = [
        SequenceFeature(
            f"list{n}",
            vocab_size=encode.sizes[encode.candidate],
            embed_dim=setting["embedding_dim"],
            pooling="mean",
            shared_with=f"id{encode.candidate}",
            padding_idx=0,
        )
        for n in range(len(encode.lists))
    ]
    numbers = [DenseFeature(f"number{n}") for n in range(encode.numbers)]
    kinds = ["classification" if t == "binary" else "regression" for t in data.tasks.values()]
    tower = {"dims": [32], "dropout": setting["dropout"]}
    model = build(ids + lists + numbers, kinds, tower_params_list=[tower for _ in kinds])

    def forward(codes: torch.Tensor, values: torch.Tensor, *entries: torch.Tensor) -> torch.Tensor:
        inputs = {f"id{n}": codes[:, n] for n in range(codes.shape[1])}
        inputs |= {f"number{n}": values[:, n] for n in range(values.shape[1])}
        inputs |= {f"list{n}": ids for n, ids in enumerate(entries)}
        found: torch.Tensor = model(inputs)
        return found[:, None, :]

    return _fit(model, forward, encode, data, setting, seed)


def mmoe(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
    """Multi-gate mixture of experts of torch-rechub."""
    from torch_rechub.models.multi_task import MMOE

    torch.set_num_threads(threads)

    def build(features: Any, kinds: Any, tower_params_list: Any) -> torch.nn.Module:
        expert = {"dims": [setting["units"]], "dropout": setting["dropout"]}
        model: torch.nn.Module = MMOE(
            features, kinds, setting["experts"], expert, tower_params_list
        )
        return model

    return _rechub(build, data, setting, seed)


def ple(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
    """Progressive layered extraction of torch-rechub."""
    from torch_rechub.models.multi_task import PLE

    torch.set_num_threads(threads)

    def build(features: Any, kinds: Any, tower_params_list: Any) -> torch.nn.Module:
        expert = {"dims": [setting["units"]], "dropout": setting["dropout"]}
        model: torch.nn.Module = PLE(
            features, kinds, 1, setting["own"], setting["shared"], expert, tower_params_list
        )
        return model

    return _rechub(build, data, setting, seed)


def din(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
    """Deep interest network of torch-rechub: its attention unit and its towers, one a task.

    Its own model has one task and reads no numbers; here all tasks share the embeddings and the
    attention, and the numbers join them before the towers.
    """
    from torch_rechub.basic.layers import MLP
    from torch_rechub.models.ranking.din import ActivationUnit

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    encode = NetworkInputs(data)
    binary = torch.tensor([kind == "binary" for kind in data.tasks.values()])
    width, lists = setting["embedding_dim"], len(encode.lists)
    into = encode.numbers + width * (len(encode.sizes) + lists)
    unit = {"dims": [36], "activation": "dice", "use_softmax": False}
    tower = {"dims": [setting["units"], 64], "dropout": setting["dropout"], "activation": "dice"}
    model = torch.nn.ModuleDict(
        {
            "ids": torch.nn.ModuleList(torch.nn.Embedding(size, width) for size in encode.sizes),
            "attention": torch.nn.ModuleList(ActivationUnit(width, **unit) for _ in range(lists)),
            "towers": torch.nn.ModuleList(MLP(into, **tower) for _ in data.tasks),
        }
    )

    def forward(codes: torch.Tensor, values: torch.Tensor, *entries: torch.Tensor) -> torch.Tensor:
        parts = [table(codes[:, n]) for n, table in enumerate(model["ids"])]
        candidate, table = parts[encode.candidate], model["ids"][encode.candidate]
        for attention, ids in zip(model["attention"], entries, strict=True):
            history = table(ids) * (ids > 0)[..., None]  # padding adds nothing to the sum
            parts.append(attention(history, candidate))
        x = torch.cat([values, *parts], dim=1)
        z = torch.cat([tower(x) for tower in model["towers"]], dim=1)[:, None, :]
        return torch.where(binary, torch.sigmoid(z), z)

    return _fit(model, forward, encode, data, setting, seed)


def tabm(data: Data, setting: dict[str, Any], seed: int, threads: int) -> Predict:
    """TabM: K members of one network, each with weights of its own by rank one."""
    import tabm as library

    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    encode = NetworkInputs(data)
    binary = torch.tensor([kind == "binary" for kind in data.tasks.values()])
    # Its own layer for ids is one-hot, which two thousand ids make slow: embeddings come before.
    width = setting["embedding_dim"]
    model = torch.nn.ModuleDict(
        {
            "ids": torch.nn.ModuleList(torch.nn.Embedding(size, width) for size in encode.sizes),
            "members": library.TabM.make(
                n_num_features=encode.numbers + width * (len(encode.sizes) + len(encode.lists)),
                cat_cardinalities=[],
                d_out=len(data.tasks),
                n_blocks=setting["blocks"],
                d_block=setting["units"],
                dropout=setting["dropout"],
                k=setting["members"],
            ),
        }
    )

    def forward(codes: torch.Tensor, values: torch.Tensor, *entries: torch.Tensor) -> torch.Tensor:
        parts = [table(codes[:, n]) for n, table in enumerate(model["ids"])]
        parts += [_mean(model["ids"][encode.candidate], ids) for ids in entries]
        z = model["members"](torch.cat([values, *parts], dim=1))
        return torch.where(binary, torch.sigmoid(z), z)

    return _fit(model, forward, encode, data, setting, seed)
