"""Monitors of a wide state: does it grow, do the virtual slots get used, do the coefficients saturate?

`Monitor` watches the forward passes inside its `with` block on a sample of tokens; `report()` gives the figures
of each sub-layer and the alarms. It costs a second computation of the sampled tokens' coefficients, so use it
every few hundred steps.

Shape suffixes: S sampled tokens, n slots, d slot width.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from widestream.vwn.carries import carry_matrix
from widestream.vwn.ghc import GHC, GHCMixer

REPORT_FILE = "wide_state.json"


@dataclasses.dataclass(frozen=True, slots=True)
class SubLayerFigures:
    """One GHC, over the sampled tokens.

    Attributes:
        name: of the GHC in the model.
        composite_gain: largest absolute row or column sum of the product of all carries up to here: how much a
            signal (row: backward; column: forward) can have grown. 1 is the residual network's.
        slot_rms: root mean square of each slot before the sub-layer.
        virtual_read_share: share of the read coefficients' absolute mass on slots m and above, 0 at step 0; 0
            where there are no such slots.
        saturation: mean |tanh| of the dynamic part, 0 to 1; 0 for a static GHC.
        scale_norm: root mean square of the dynamic scales S; 0 for a static GHC.
    """

    name: str
    composite_gain: float
    slot_rms: tuple[float, ...]
    virtual_read_share: float
    saturation: float
    scale_norm: float


@dataclasses.dataclass(frozen=True, slots=True)
class MonitorReport:
    """Figures of every sub-layer in the order of the forward pass, and what is alarming about them."""

    sub_layers: tuple[SubLayerFigures, ...]
    alarms: tuple[str, ...]

    def write(self, run_dir: Path) -> Path:
        """Writes `wide_state.json` into a run folder, where the training report shows it; returns its path."""
        path = run_dir / REPORT_FILE
        rows = [dataclasses.asdict(figures) for figures in self.sub_layers]
        path.write_text(json.dumps({"sub_layers": rows, "alarms": self.alarms}), encoding="utf-8")
        return path


class Monitor:
    """Watches the GHC modules of a model while it is entered; not thread-safe.

    Args:
        model: any module with `GHC` inside.
        sampled_tokens: tokens looked at in each sub-layer of the latest pass.
        gain_alarm: a composite gain above it is alarming (mHC saw 3,000 before its losses surged).
        saturation_alarm: a mean |tanh| above it is alarming.
    """

    def __init__(
        self, model: nn.Module, *, sampled_tokens: int = 64, gain_alarm: float = 100.0, saturation_alarm: float = 0.95
    ) -> None:
        if sampled_tokens < 1:
            raise ValueError(f"Monitor: sampled_tokens is {sampled_tokens}; it must be at least 1")
        self._modules = {name: module for name, module in model.named_modules() if isinstance(module, GHC)}
        if not self._modules:
            raise ValueError("Monitor: the model has no GHC; a plain model has no wide state to watch")
        self._sampled_tokens = sampled_tokens
        self._gain_alarm, self._saturation_alarm = gain_alarm, saturation_alarm
        self._states: dict[str, Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> Monitor:
        for name, module in self._modules.items():
            self._hooks.append(module.register_forward_pre_hook(self._keep(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _keep(self, name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            h_Tnd = arguments[0].detach().flatten(0, -3)
            if h_Tnd.shape[0]:
                stride = max(1, h_Tnd.shape[0] // self._sampled_tokens)
                # The same tokens in every sub-layer, so that their carries multiply. Taken out and put back: the
                # order of this dict is that of the latest pass.
                self._states.pop(name, None)
                self._states[name] = h_Tnd[::stride][: self._sampled_tokens].clone()

        return hook

    @torch.no_grad()
    def report(self) -> MonitorReport:
        """Figures of the latest forward pass.

        Raises:
            RuntimeError: no forward pass was seen.
        """
        if not self._states:
            raise RuntimeError("Monitor saw no forward pass; run the model inside the with block")
        product_Snn: Tensor | None = None
        figures, alarms = [], []
        for name, h_Snd in self._states.items():
            mixer = self._modules[name].mixer
            coefficients_Snc = mixer.coefficients(h_Snd)
            if product_Snn is not None and product_Snn.shape != (len(h_Snd), mixer.n, mixer.n):
                product_Snn = None
            product_Snn = _times_carry(product_Snn, mixer, coefficients_Snc, len(h_Snd))
            found = _figures(name, mixer, h_Snd, coefficients_Snc, product_Snn)
            figures.append(found)
            if not found.composite_gain <= self._gain_alarm:
                alarms.append(
                    f"{name}: the carries up to here multiply a signal by up to {found.composite_gain:.3g} (alarm at "
                    f"{self._gain_alarm:g}); lower the learning rate, or use carry: identity or sinkhorn"
                )
            if not found.saturation <= self._saturation_alarm:
                alarms.append(
                    f"{name}: mean |tanh| of the dynamic coefficients is {found.saturation:.3f} (alarm at "
                    f"{self._saturation_alarm:g}): they hardly learn any more; check the weight decay of W"
                )
            if not all(math.isfinite(value) for value in found.slot_rms):
                alarms.append(f"{name}: the wide state is not finite")
        return MonitorReport(tuple(figures), tuple(alarms))


def _times_carry(product_Snn: Tensor | None, mixer: GHCMixer, coefficients_Snc: Tensor, tokens: int) -> Tensor:
    if product_Snn is None:
        eye = torch.eye(mixer.n, dtype=coefficients_Snc.dtype, device=coefficients_Snc.device)
        product_Snn = eye.expand(tokens, -1, -1)
    if mixer.carry == "identity":
        return product_Snn
    return product_Snn @ carry_matrix(coefficients_Snc[..., mixer.m : -mixer.m], mixer.carry)


def _figures(
    name: str, mixer: GHCMixer, h_Snd: Tensor, coefficients_Snc: Tensor, product_Snn: Tensor
) -> SubLayerFigures:
    read = coefficients_Snc[..., : mixer.m].abs()
    absolute = torch.maximum(product_Snn.sum(1).abs().amax(), product_Snn.sum(2).abs().amax())
    saturation = scale = 0.0
    if mixer.dynamic:
        scale = float(mixer.scale.square().mean().sqrt())
        saturation = float(_tanh(mixer, h_Snd).abs().mean())
    return SubLayerFigures(
        name=name,
        composite_gain=float(absolute),
        slot_rms=tuple(h_Snd.float().square().mean((0, 2)).sqrt().tolist()),
        virtual_read_share=float(read[:, mixer.m :].sum() / read.sum().clamp_min(1e-30)),
        saturation=saturation,
        scale_norm=scale,
    )


def _tanh(mixer: GHCMixer, h_Snd: Tensor) -> Tensor:
    dtype = torch.promote_types(h_Snd.dtype, torch.float32)
    h = h_Snd.to(dtype)
    normed = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + mixer.eps) * mixer.gain.to(dtype)
    return torch.tanh(normed @ mixer.weight.to(dtype) * mixer.slot_width**-0.5)
