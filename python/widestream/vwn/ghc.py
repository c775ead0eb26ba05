"""Generalized Hyper-Connections: `GHC(block)` joins a D -> D sub-layer to a wide state of n slots.

Shape suffixes: T tokens, n slots, m segments, d width of a slot (D = m d), D backbone width, c coefficient
columns (m read, then the carry's, then m write).

Per token, with the wide state h (n slots of d numbers) and coefficients that depend on the token:

    x_k      = sum_i read[i, k] h_i                                    D numbers into the sub-layer
    h_new[j] = sum_k write[j, k] z_k + sum_i carry[i, j] h_i           z is the sub-layer's output

    coefficients = static + scale * tanh( RMSNorm(h_i) W / sqrt(d) )   row i depends on slot i alone
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from widestream.vwn import operators
from widestream.vwn.carries import carry_matrix, initial_carry
from widestream.vwn.config import CARRY_LIMITS, Carry

_LOW_PRECISION = (torch.bfloat16, torch.float16)


def initial_coefficients(m: int, n: int, carry: Carry = "ghc", read_offset: int = 0) -> Tensor:
    """The static coefficients at step 0, shape [n, m + c + m], float32; c = n for "ghc" and "sinkhorn", 0 for
    "identity", n! for "perm".

    Slots read_offset .. read_offset + m - 1 (modulo n) are read, the carry is the identity (nearly, where it is
    constrained), and slot j receives output segment j mod m: with offset 0 a new model is a plain residual
    network in its first m slots.
    """
    read = torch.eye(n, m).roll(read_offset, 0)
    write = torch.zeros(n, m)
    write[torch.arange(n), torch.arange(n) % m] = 1.0
    return torch.cat((read, initial_carry(n, carry), write), dim=1)


class GHCMixer(nn.Module):
    """The parameters of one GHC and its two halves, `read` and `write`.

    Parameters: `static` and, when dynamic, `scale` [n, c], `weight` [d, c], `gain` [d]. They stay float32 (or
    float64) whatever `module.to(bfloat16)` or autocast say: near 1 a bfloat16 carry gain moves in steps of
    0.4 % to 0.8 %, which compounds over the layers. A sub-module of its own, so that FSDP can wrap it apart.
    """

    def __init__(
        self,
        d_model: int,
        m: int,
        n: int,
        *,
        dynamic: bool = True,
        carry: Carry = "ghc",
        dyn_scale_init: float = 1.0,
        eps: float = 1e-6,
        read_offset: int = 0,
    ) -> None:
        super().__init__()
        if m < 1 or n < m or d_model % m:
            raise ValueError(f"GHC needs n >= m >= 1 and d_model a multiple of m; got {d_model=}, {m=}, {n=}")
        if carry not in CARRY_LIMITS or n > CARRY_LIMITS[carry]:
            raise ValueError(
                f"GHC carry {carry!r} with n = {n} slots: sinkhorn takes up to {CARRY_LIMITS['sinkhorn']}, perm up to "
                f"{CARRY_LIMITS['perm']}; ghc and identity take any n"
            )
        self.d_model, self.m, self.n, self.slot_width = d_model, m, n, d_model // m
        self.dynamic, self.carry, self.eps = dynamic, carry, eps
        self.dyn_scale_init = dyn_scale_init
        operators.load()
        static = initial_coefficients(m, n, carry, read_offset)
        self.static = nn.Parameter(static)
        if dynamic:
            self.weight = nn.Parameter(torch.zeros(self.slot_width, static.shape[1]))
            self.scale = nn.Parameter(torch.full_like(static, dyn_scale_init))
            self.gain = nn.Parameter(torch.ones(self.slot_width))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GHCMixer:
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in _LOW_PRECISION else moved

        super()._apply(keep_precision, recurse)  # type: ignore[no-untyped-call]
        return self

    def fused(self, h_Tnd: Tensor) -> bool:
        """Whether the fused operators take this state; else the formulas below run as PyTorch's own operators."""
        return operators.serves(h_Tnd) and self.static.dtype == torch.float32

    def operator_parameters(self) -> operators.Parameters:
        """static, scale, weight and gain, in the order of the operators; the last three None when static."""
        if not self.dynamic:
            return self.static, None, None, None
        return self.static, self.scale, self.weight, self.gain

    def enter(self, h_Tnd: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(x [T, D], what `leave` needs): the read, by the fused operators where they serve the state."""
        if self.fused(h_Tnd):
            x_TD, *held = operators.enter(h_Tnd, self.operator_parameters(), self.m, self.carry, self.eps)
            return x_TD, tuple(held)
        coefficients_Tnc = self.coefficients(h_Tnd)
        return self.read(h_Tnd, coefficients_Tnc), (coefficients_Tnc,)

    def leave(self, h_Tnd: Tensor, z_TD: Tensor, held: tuple[Tensor, ...]) -> Tensor:
        """The next wide state [T, n, d]; `held` is what `enter` gave for the same state."""
        if len(held) == 1:
            return self.write(h_Tnd, z_TD, held[0])
        if z_TD.dtype not in (torch.float32, torch.bfloat16):
            z_TD = z_TD.to(h_Tnd.dtype)
        return operators.leave(h_Tnd, z_TD.reshape(h_Tnd.shape[0], self.d_model), held, self.m, self.carry)

    def coefficients(self, h_Tnd: Tensor) -> Tensor:
        """Coefficients for each token, [T, n, c] when dynamic and [1, n, c] when static; float32 or wider."""
        dtype = torch.promote_types(h_Tnd.dtype, torch.float32)
        static_nc = self.static.to(dtype)
        if not self.dynamic:
            return static_nc.unsqueeze(0)
        with torch.autocast(h_Tnd.device.type, enabled=False):
            h = h_Tnd.to(dtype)
            # 1/rms after the product and the gain inside W: the state is read once.
            weight_dc = self.gain.to(dtype).unsqueeze(1) * self.weight.to(dtype)
            rho_Tn1 = torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)
            u_Tnc = (h.flatten(0, 1) @ weight_dc).view(*h.shape[:2], weight_dc.shape[1])
            angle_Tnc = u_Tnc * (rho_Tn1 * self.slot_width**-0.5)
            return torch.addcmul(static_nc, self.scale.to(dtype), torch.tanh(angle_Tnc))

    def read(self, h_Tnd: Tensor, coefficients_Tnc: Tensor) -> Tensor:
        """The sub-layer's input, [T, D], in the dtype of the state."""
        with torch.autocast(h_Tnd.device.type, enabled=False):
            h = h_Tnd.to(coefficients_Tnc.dtype)
            x_Tmd = _mix_slots(coefficients_Tnc[..., : self.m], h)
            return x_Tmd.flatten(1).to(h_Tnd.dtype)

    def write(self, h_Tnd: Tensor, z_TD: Tensor, coefficients_Tnc: Tensor) -> Tensor:
        """The next wide state, [T, n, d], in the dtype of the state."""
        with torch.autocast(h_Tnd.device.type, enabled=False):
            h = h_Tnd.to(coefficients_Tnc.dtype)
            z_Tmd = z_TD.reshape(h.shape[0], self.m, self.slot_width).to(coefficients_Tnc.dtype)
            write_Tmn = coefficients_Tnc[..., -self.m :].transpose(1, 2)
            if self.carry == "identity":
                carried_Tnd = h
            else:
                carried_Tnd = _mix_slots(carry_matrix(coefficients_Tnc[..., self.m : -self.m], self.carry), h)
            return (carried_Tnd + _mix_slots(write_Tmn, z_Tmd)).to(h_Tnd.dtype)

    def extra_repr(self) -> str:
        """The sizes, for `print(model)`."""
        return f"m={self.m}, n={self.n}, d={self.slot_width}, dynamic={self.dynamic}, carry={self.carry}"


def _mix_slots(coefficients_Tij: Tensor, h_Tid: Tensor) -> Tensor:
    """[T, j, d] with out_j = sum_i coefficients[i, j] h_i; coefficients may be [1, i, j]."""
    if coefficients_Tij.shape[0] == 1 and h_Tid.shape[0] != 1:
        return torch.einsum("ij,tid->tjd", coefficients_Tij[0], h_Tid)
    return torch.einsum("tij,tid->tjd", coefficients_Tij, h_Tid)


class GHC(nn.Module):
    """Joins any sub-layer of D numbers in and out to a wide state of n slots of D/m numbers.

    `block` is called with the [..., D] input and any further arguments of `forward`, and must return one
    tensor of the same shape, the sub-layer's output *without* the residual; its pre-norm belongs to it. At
    step 0 the first m slots evolve as the plain residual network `x + block(x)`.

    Args:
        block: the D -> D sub-layer.
        d_model: D.
        m: segments of a backbone vector, a divisor of D.
        n: slots of the wide state, n >= m.
        dynamic, carry, dyn_scale_init: as in `VWNConfig`.
        eps: epsilon of the coefficients' RMSNorm.
        read_offset: first slot of the initial read.
    """

    def __init__(
        self,
        block: nn.Module,
        *,
        d_model: int,
        m: int,
        n: int,
        dynamic: bool = True,
        carry: Carry = "ghc",
        dyn_scale_init: float = 1.0,
        eps: float = 1e-6,
        read_offset: int = 0,
    ) -> None:
        super().__init__()
        self.block = block
        self.mixer = GHCMixer(
            d_model,
            m,
            n,
            dynamic=dynamic,
            carry=carry,
            dyn_scale_init=dyn_scale_init,
            eps=eps,
            read_offset=read_offset,
        )

    def forward(self, h: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The next wide state.

        Args:
            h: wide state, [..., n, d]; float32, bfloat16 or float64.
            *args, **kwargs: handed to the sub-layer.

        Raises:
            ValueError: the last two sizes of `h` are not (n, d), or the sub-layer changed the shape.
        """
        mixer = self.mixer
        if h.dim() < 2 or tuple(h.shape[-2:]) != (mixer.n, mixer.slot_width):
            raise ValueError(f"GHC expects a wide state [..., {mixer.n}, {mixer.slot_width}]; got {list(h.shape)}")
        h_Tnd = h.reshape(h.shape[:-2].numel(), mixer.n, mixer.slot_width)
        x_TD, held = mixer.enter(h_Tnd)
        x = x_TD.view(*h.shape[:-2], mixer.d_model)
        z = self.block(x, *args, **kwargs)
        if not isinstance(z, Tensor) or z.shape != x.shape:
            found = list(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise ValueError(f"the sub-layer of a GHC must return {list(x.shape)}; it returned {found}")
        return mixer.leave(h_Tnd, z, held).view(h.shape)
