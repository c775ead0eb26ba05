"""pin_memory and device: refused without an accelerator, no copy by default, one copy out of the slab otherwise (S-10)."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import widestream as ws
from tests.support.jobs import fingerprint, small_job
from widestream.errors import InvalidArgumentError
from widestream.loader.device import Mover, move_batch

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")]


class Copies(TorchDispatchMode):
    """Counts the bytes that tensor operations write to new places, and refuses operations that are no copies."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.name()
        if name in ("aten::copy_", "aten::_to_copy", "aten::clone"):
            self.bytes += result.numel() * result.element_size()
        else:
            # Views and fresh memory. aten::zeros and fill_ would write, too.
            assert name.split(".")[0] in (
                "aten::slice",
                "aten::view",
                "aten::empty",
                "aten::lift_fresh",
                "aten::detach",
            ), name
        return result


class Pageable(Mover):
    """Takes the way of pinned memory on a machine that has none to pin."""

    def __init__(self):
        super().__init__()
        self._pins = True

    def _allocate(self):
        return lambda size: torch.empty(size, dtype=torch.uint8)


def bytes_of(batch):
    return sum(t.numel() * t.element_size() for mb in batch.microbatches for t in mb.tensors().values())


@pytest.mark.parametrize("layout", ["rows", "thd"])
def test_S10_one_copy_out_of_the_slab_and_none_by_default(tmp_path, layout):
    batch_section = {"layout": "thd", "rows": None, "tokens": 300, "microbatch_tokens": 128} if layout == "thd" else {}
    mover = Pageable()
    total = 0
    with ws.DataLoader(small_job(tmp_path, batch=batch_section)) as loader:
        for _ in range(3):
            with Copies() as copies:
                batch = next(loader)
                places = [tensor.data_ptr() for mb in batch.microbatches for tensor in mb.tensors().values()]
                assert batch.to("cpu") is batch
            assert copies.bytes == 0, "the loader hands out views of the engine's memory"
            assert places == [tensor.data_ptr() for mb in batch.microbatches for tensor in mb.tensors().values()]
            before, size = fingerprint(batch), bytes_of(batch)
            with Copies() as copies:
                move_batch(batch, mover)
            assert copies.bytes == size, "every byte is copied once"
            assert fingerprint(batch) == before
            total += size
    assert total <= mover.host_bytes < total + 64 * 8 * 3 * 16, "but for the gaps that align tensors"
    assert mover.device_bytes == 0


def test_moved_tensors_do_not_hold_the_slab(tmp_path):
    """More of them are held than fit into the engine's memory; a batch itself holds its slab until it is dropped."""
    job = small_job(tmp_path, batch={"sequence_length": 2048, "rows": 32, "microbatch_tokens": 65536})
    with ws.DataLoader(job) as loader:
        mover, held, size = Pageable(), [], 0
        while size < 80 * 2**20:
            batch = move_batch(next(loader), mover)
            size += bytes_of(batch)
            held.append(batch.microbatches)
        assert len(held) == batch.step + 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize("options", [{"pin_memory": True}, {"device": "cuda"}, {"device": "cuda:1"}])
def test_without_an_accelerator_it_is_refused_with_the_reason(tmp_path, options):
    with pytest.raises(InvalidArgumentError, match="torch sees no CUDA device here"):
        ws.DataLoader(small_job(tmp_path), **options)
    with ws.DataLoader(small_job(tmp_path)) as loader, pytest.raises(InvalidArgumentError, match="no CUDA device"):
        next(loader).to("cuda")


def test_other_devices_and_numpy_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="'cpu' or 'cuda'"):
        Mover("meta")
    with pytest.raises(InvalidArgumentError, match="need torch tensors"):
        ws.DataLoader(small_job(tmp_path), tensors="numpy", pin_memory=True)


@pytest.mark.parametrize(
    "options", [pytest.param({"device": "cuda"}, marks=gpu), pytest.param({"pin_memory": True}, marks=gpu)]
)
def test_S10_on_a_gpu_the_values_are_those_of_the_slab(tmp_path, options):
    with ws.DataLoader(small_job(tmp_path), **options) as loader, ws.DataLoader(small_job(tmp_path)) as plain:
        for _ in range(20):
            batch, expected = next(loader), next(plain)
            for mb, other in zip(batch.microbatches, expected.microbatches, strict=True):
                for name, tensor in mb.tensors().items():
                    assert tensor.is_cuda == ("device" in options) and tensor.is_pinned() == ("pin_memory" in options)
                    # Read at once on the current stream: it waits for the transfer, not the host.
                    assert torch.equal((tensor.clone() if tensor.is_cuda else tensor).cpu(), getattr(other, name))
            if "device" in options:
                del batch, mb, tensor
                torch.empty(1 << 20, device="cuda").fill_(7)  # takes up freed blocks
