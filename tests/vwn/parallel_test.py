"""Two ranks on gloo train as one process does: DDP, FSDP2 with float32 GHC units, distributed checkpoints."""

import datetime
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from widestream.vwn import VWNConfig, VWNTransformer

SIZES = {"vocabulary_size": 31, "d_model": 24, "layers": 2, "heads": 3, "ffn_width": 40, "m": 2, "n": 4}
TOKENS = torch.randint(0, 31, (4, 12), generator=torch.Generator().manual_seed(0))
STEPS = 3


def build(seed=0, **options):
    torch.manual_seed(seed)
    return VWNTransformer(VWNConfig(**SIZES, **options))


def train(model, plain, rows):
    """AdamW steps; returns the losses. `plain` is the module whose head gives the logits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = plain.head(model(rows).hidden[0])
        loss = functional.cross_entropy(logits, rows.flatten())
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def meet(rank, folder):
    """Joins the two ranks, on the loopback device: the machine's name may not resolve."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    limit = datetime.timedelta(seconds=40)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2, timeout=limit)


def leave(rank, folder):
    """Ends this rank when both are done, for a rank that goes first breaks the other's connections. Without the
    interpreter's end: gloo's threads may abort a process that tears them down."""
    (Path(folder) / f"done-{rank}").touch()
    while not (Path(folder) / f"done-{1 - rank}").exists():
        time.sleep(0.01)
    os._exit(0)


def work(rank, kind, folder):
    meet(rank, folder)
    model = build()
    rows = TOKENS[rank::2]
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
        train(wrapped, model, rows)
        whole = model.state_dict()
    else:
        from widestream.vwn.parallel import shard_model

        if kind == "fsdp_layer":
            model.set_recompute("layer")
        shard_model(model, dist.device_mesh.init_device_mesh("cpu", (2,)))
        train(model, model, rows)
        dcp.save(get_model_state_dict(model), checkpoint_id=f"{folder}/checkpoint")
        fresh = shard_model(build(seed=1), dist.device_mesh.init_device_mesh("cpu", (2,)))
        state = get_model_state_dict(fresh)
        dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
        set_model_state_dict(fresh, state)
        whole = get_model_state_dict(fresh, options=StateDictOptions(full_state_dict=True))
        kept = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        assert all(torch.equal(kept[name], value) for name, value in whole.items())
    if rank == 0:
        torch.save(dict(whole), f"{folder}/found.pt")
    leave(rank, folder)


def work_low_precision(rank, folder):
    meet(rank, folder)
    from widestream.vwn.parallel import shard_model

    model = shard_model(build(), parameter_dtype=torch.bfloat16)
    seen = set()
    mixer = model.layers[0].attention.mixer
    inner = model.layers[0].attention.block.qkv
    inner.register_forward_pre_hook(lambda module, _: seen.add(("block", module.weight.dtype)))
    original = type(mixer).fused

    def fused(self, h):
        seen.add(("mixer", self.static.dtype, self.weight.dtype))
        return original(self, h)

    type(mixer).fused = fused
    with torch.autocast("cpu", torch.bfloat16):
        model(TOKENS[rank::2]).hidden[0].sum().backward()
    assert seen == {("block", torch.bfloat16), ("mixer", torch.float32, torch.float32)}, seen
    model.set_recompute("block")
    with pytest.raises(RuntimeError, match="does not go together with FSDP2"):
        model(TOKENS[rank::2])
    leave(rank, folder)


# Two processes that import torch: 5 s a test.
@pytest.mark.parametrize("kind", ["ddp", "fsdp", pytest.param("fsdp_layer", marks=pytest.mark.full)])
def test_two_ranks_equal_one(kind, tmp_path):
    expected = build()
    train(expected, expected, TOKENS)
    mp.spawn(work, args=(kind, str(tmp_path)), nprocs=2)
    found = torch.load(tmp_path / "found.pt", weights_only=True)
    start = build().state_dict()
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(found[name], value, atol=2e-4, rtol=1e-3, msg=name)
        assert not torch.equal(value, start[name]) or name.endswith("mixer.gain"), name


@pytest.mark.full
def test_ghc_stays_float32_in_a_bfloat16_unit(tmp_path):
    mp.spawn(work_low_precision, args=(str(tmp_path),), nprocs=2)
