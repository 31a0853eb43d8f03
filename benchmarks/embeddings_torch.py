"""The contender `torch` of `embeddings.py`: one step for every line of its input.

Arguments: rows and width of the table.  Its input begins with eight batches of int32 codes.
"""

import itertools
import sys
import time

import numpy as np
import torch

B, K = 2048, 22


def main() -> None:
    rows, width = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    given = [
        torch.from_numpy(np.frombuffer(sys.stdin.buffer.read(4 * B * K), np.int32).copy())
        .view(B, K)
        .long()
        for _ in range(8)
    ]
    table = torch.nn.Embedding(rows, width, sparse=True)
    linear = torch.nn.Linear(width, 1)
    optimizers = [
        torch.optim.SparseAdam(table.parameters()),
        torch.optim.Adam(linear.parameters()),
    ]
    print("ready", flush=True)
    for codes in itertools.cycle(given):
        if not sys.stdin.buffer.readline():
            return
        start = time.process_time()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = ((linear(table(codes).mean(1)) - 1) ** 2).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        print(1e3 * (time.process_time() - start), flush=True)


if __name__ == "__main__":
    main()
