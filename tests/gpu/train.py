#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small PyTorch training, as an ordinary program: convolution, batch norm, linear, GELU, layer
norm, AdamW; cuDNN and cuBLAS kernels. Prints for each repetition

  loss=0.008851110 weight_sum=-1566.3636

PyTorch is not bit-reproducible here (atomics in backward kernels), so a repetition with the same
seed spreads a little: --repeat N shows how much.
"""
import argparse
import sys
import time


def train(torch, steps, seed, late):
    nn = torch.nn
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 32 * 32, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    images = torch.randn(64, 3, 32, 32, device="cuda")
    labels = torch.randint(0, 10, (64,), device="cuda")
    loss = None
    begin = time.monotonic()
    for step in range(steps):
        if step == late:
            torch.cuda.synchronize()
            middle = time.monotonic()
        output = model(images)
        if late is not None and step >= late:
            # Kernels that nothing has loaded before.
            output = output + 0 * torch.erfinv(torch.tanh(output)).cumsum(1)
        loss = nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    if late is not None:
        print("ms per step: %.3f before step %d, %.3f from it on" % (
            1000 * (middle - begin) / max(late, 1), late,
            1000 * (time.monotonic() - middle) / (steps - late)), file=sys.stderr, flush=True)
    return loss.item(), sum(p.double().sum().item() for p in model.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeat", type=int, default=1, help="trainings, each from the start")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--late", type=int, metavar="STEP", help="from this step on, use kernels "
                        "that were not used before, and tell the time of a step before and after")
    args = parser.parse_args()
    if args.steps < 1 or args.repeat < 1:
        parser.error("--steps and --repeat must be at least 1")
    if args.late is not None and not 0 < args.late < args.steps:
        parser.error("--late must be a step between the first and the last")
    import torch  # after the options: it takes seconds
    if not torch.cuda.is_available():
        print("train.py: PyTorch finds no CUDA device", file=sys.stderr)
        return 1
    for _ in range(args.repeat):
        loss, weight_sum = train(torch, args.steps, args.seed, args.late)
        print("loss=%.9f weight_sum=%.6f" % (loss, weight_sum), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
