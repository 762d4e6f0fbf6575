# SPDX-License-Identifier: Apache-2.0
"""Two ranks or more over torch.distributed: a matrix that no rank holds all of is trained by all.

    torchrun --standalone --nproc-per-node 2 ranks.py [DIRECTORY]

Each rank keeps its shard of the weights, of their gradient and of AdamW's moments; the weights are
gathered for a step and the gradients of all ranks summed after it. The losses are the same on any
number of ranks that divides the batches.
"""
import sys

import stepwell

try:
    import torch
    import torch.distributed
except ImportError:
    sys.exit("ranks.py needs PyTorch: pip install torch")

MIB = 1 << 20
N, BATCHES, STEPS = 512, 8, 5


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(N, 4, generator=generator)


def train(runtime, rank, ranks):
    weights = runtime.create("w", (N, N), "f32", role="param", partition="sharded")
    gradient = runtime.create("w.grad", (N, N), "f32", role="grad", partition="sharded")
    weights.fill(0.0)
    info = weights.info()
    print(f"rank {rank} of {ranks} holds elements [{info.shard_begin}, "
          f"{info.shard_begin + info.shard_elements}) of {info.elements}", flush=True)
    optimizer = runtime.adamw(stepwell.Hyper(lr=0.01))
    optimizer.add(weights, gradient)
    for step in range(STEPS):
        loss = torch.zeros(())
        with weights.fetch() as whole, gradient.fetch("reduce") as mine:
            values, sums = torch.from_dlpack(whole), torch.from_dlpack(mine)
            for number in range(rank, BATCHES, ranks):
                x = batch(number)
                error = values @ x - x  # what is learned is the identity
                loss += error.square().mean() / BATCHES
                sums += error @ x.T / BATCHES
            del values, sums
        result = optimizer.step(clip_norm=1.0)
        torch.distributed.all_reduce(loss)  # the program's own collectives go on as ever
        if rank == 0:
            print(f"step {step}  loss {loss.item():.4f}  norm {result.norm:.3f}", flush=True)


def main():
    directory = sys.argv[1] if len(sys.argv) > 1 else "."
    torch.distributed.init_process_group("gloo")
    with stepwell.Group.from_torch() as group:
        with stepwell.Runtime(host_bytes=16 * MIB, nvme=stepwell.Nvme(directory, 64 * MIB),
                              block_bytes=stepwell.BLOCK_64K, group=group) as runtime:
            train(runtime, group.rank, group.size)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except stepwell.Error as error:
        sys.exit(f"ranks: {error}")
