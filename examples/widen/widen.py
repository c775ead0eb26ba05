"""Continue wide, or continue narrow? Trains a small plain model, then goes on from the same weights both ways.

    python examples/widen/widen.py --steps 300

Every variant sees the same rows in the same order, with a learning rate and a fresh optimizer of its own. It
prints the validation loss of each, and writes it as JSON. The text is this repository's own documents, byte by
byte, so the figures say how to do it, not what width is worth.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from widestream.vwn import VWNConfig, VWNTransformer, param_groups, widen

ROOT = Path(__file__).resolve().parents[2]
ROW, BATCH = 128, 8


def corpus() -> tuple[Tensor, Tensor]:
    """Training and validation bytes: every tenth block of 2,048 bytes is held out."""
    files = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("python/widestream/**/*.py"), *ROOT.glob("*.md")])
    data = torch.frombuffer(bytearray(b"\n".join(path.read_bytes() for path in files)), dtype=torch.uint8).long()
    blocks = data[: data.numel() // 2048 * 2048].view(-1, 2048)
    held_out = torch.arange(len(blocks)) % 10 == 9
    return blocks[~held_out].flatten(), blocks[held_out].flatten()


def loss_of(model: VWNTransformer, rows: Tensor) -> Tensor:
    """Next-byte loss in nats."""
    logits = model.logits(model(rows[:, :-1]).hidden[0])
    return functional.cross_entropy(logits, rows[:, 1:].flatten())


def train(model: VWNTransformer, data: Tensor, steps: int, rate: float, seed: int) -> None:
    """AdamW with a short warm-up, then linear decay to a tenth."""
    optimizer = torch.optim.AdamW(param_groups(model, 0.1), lr=rate, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        scale = min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate * scale
        start = torch.randint(0, data.numel() - ROW - 1, (BATCH,), generator=generator)
        rows = data[start[:, None] + torch.arange(ROW + 1)]
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, rows).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@torch.no_grad()
def validate(model: VWNTransformer, data: Tensor, most_rows: int) -> float:
    """Mean loss over up to `most_rows` rows of the held-out bytes."""
    rows = data[: data.numel() // (ROW + 1) * (ROW + 1)].view(-1, ROW + 1)[:most_rows]
    return float(loss_of(model, rows))


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="of the first phase and of each continuation")
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3, 2e-3], help="tried for each variant")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--validation-rows", type=int, default=96)
    parser.add_argument("--out", type=Path, default=Path("widen.json"))
    options = parser.parse_args()
    data, held_out = corpus()
    runs = []
    for seed in options.seeds:
        torch.manual_seed(seed)
        config = VWNConfig(vocabulary_size=256, d_model=64, layers=3, heads=4, plain=True)
        base = VWNTransformer(config)
        train(base, data, options.steps, 2e-3, seed)
        before = validate(base, held_out, options.validation_rows)
        variants: dict[str, VWNTransformer] = {"narrow": base}
        for name, factor in (("wide r = 1 (n = m)", 1.0), ("wide r = 2", 2.0)):
            wide = widen(base, factor)
            assert isinstance(wide, VWNTransformer)
            assert abs(validate(wide, held_out, options.validation_rows) - before) < 1e-4, (
                "widening must not change the loss"
            )
            variants[name] = wide
        for name, start in variants.items():
            for rate in options.rates:
                model, began = copy.deepcopy(start), time.perf_counter()
                train(model, data, options.steps, rate, 1000 + seed)
                after, seconds = validate(model, held_out, options.validation_rows), time.perf_counter() - began
                runs.append(
                    {"seed": seed, "variant": name, "rate": rate, "before": before, "after": after, "seconds": seconds}
                )
                print(
                    f"seed {seed}  {name:20}  rate {rate:g}  {before:.4f} -> {after:.4f}  {seconds:.0f} s", flush=True
                )
    options.out.write_text(json.dumps(runs, indent=1), encoding="utf-8")
    for name in dict.fromkeys(str(run["variant"]) for run in runs):
        best = [
            min(float(run["after"]) for run in runs if run["variant"] == name and run["seed"] == seed)  # type: ignore[arg-type]
            for seed in options.seeds
        ]
        print(f"{name:20}  best rate of each seed, mean: {sum(best) / len(best):.4f}")


if __name__ == "__main__":
    main()
