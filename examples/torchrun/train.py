"""Data-parallel training on a Widestream job in a plain PyTorch loop.

torchrun --nproc-per-node 2 examples/torchrun/train.py examples/torchrun/job.yaml --out runs/torchrun --steps 100
The same command with more steps goes on from there, on any number of ranks.
"""

import argparse
import contextlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import widestream as ws


class Model(nn.Module):
    def __init__(self, vocabulary, positions, width=64, heads=4, layers=2):
        super().__init__()
        self.heads = heads
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, position_ids, segment_ids):
        # Documents are packed into rows: a token sees earlier ones of its own document, and no others.
        allowed = (segment_ids.unsqueeze(2) == segment_ids.unsqueeze(1)).tril()
        x = self.tokens(tokens) + self.positions(position_ids)
        return self.head(self.layers(x, mask=~allowed.repeat_interleave(self.heads, 0)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("job")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    job, saved = ws.Job.load(options.job), options.out / "checkpoint.pt"
    checkpoint = torch.load(saved, weights_only=True, map_location=device) if saved.exists() else {}
    first = checkpoint.get("step", 0)
    with ws.DataLoader(job, state=checkpoint.get("loader"), device=device) as loader:
        torch.manual_seed(0)
        model = DistributedDataParallel(Model(loader.vocabulary_size, job.batch.sequence_length).to(device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if checkpoint:
            model.module.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
        for _, batch in zip(range(first, options.steps), loader, strict=False):
            total = torch.zeros((), device=device)
            for number, mb in enumerate(batch.microbatches, start=1):
                # Gradients travel once a step, with the last microbatch.
                with contextlib.nullcontext() if number == len(batch.microbatches) else model.no_sync():
                    logits = model(mb.tokens, mb.position_ids, mb.segment_ids)
                    loss = cross_entropy(logits.flatten(0, 1), mb.labels.flatten(), reduction="sum")
                    # No mean of means: all token losses over their number on all ranks. DDP averages, hence the world.
                    (loss * dist.get_world_size() / batch.supervised_tokens).backward()
                total += loss.detach()
            optimizer.step()
            optimizer.zero_grad()
            dist.reduce(total, 0)
            if dist.get_rank() == 0:
                print(f"step {batch.step} loss {total.item() / batch.supervised_tokens:.6f}", flush=True)
        if dist.get_rank() == 0 and first < options.steps:
            loader.commit()
            options.out.mkdir(parents=True, exist_ok=True)
            parts = {"model": model.module, "optimizer": optimizer, "loader": loader}
            torch.save({**{name: part.state_dict() for name, part in parts.items()}, "step": options.steps}, saved)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
