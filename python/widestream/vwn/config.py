"""VWNConfig: every size and option of a Virtual Width Transformer. Loads no torch."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any, Literal

Carry = Literal["ghc", "identity", "sinkhorn", "perm"]
Embedding = Literal["table", "linear", "repeat"]
ReduceKind = Literal["linear", "slot", "sum"]
ReduceNorm = Literal["auto", "rms", "layer", "none"]
ReduceInit = Literal["normal", "identity"]

# Most slots of each carry: Sinkhorn's iterations cost n^2 each, a mix of permutations has n! of them.
CARRY_LIMITS: dict[str, float] = {"ghc": math.inf, "identity": math.inf, "sinkhorn": 16, "perm": 4}
_FFN_MULTIPLE = 32
MAX_MTP_DEPTH = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VWNConfig:
    """Sizes and options of a `VWNTransformer`; the defaults are the paper's values where it gives them.

    The backbone width `d_model` (D) is cut into `m` segments of d = D/m numbers; the wide state has `n` slots
    of d numbers, so the virtual width factor is r = n/m. A sub-layer still computes on D numbers.

    Zero means "derived" for `m`, `n`, `kv_heads`, `ffn_width` and `init_std`, which then hold the derived values.

    Attributes:
        vocabulary_size: number of token ids.
        d_model: backbone width D.
        layers: Transformer layers, each one attention and one SwiGLU sub-layer with their own GHC.
        heads: query heads; D/heads is the head width (even, for RoPE).
        kv_heads: key/value heads (grouped-query attention). Default: `heads`.
        ffn_width: hidden width of the SwiGLU. Default: 8/3 D, rounded up to a multiple of 32.
        experts: experts of each feed-forward sub-layer, each `ffn_width` wide; 0 for a dense one.
        experts_per_token: experts that a token uses.
        load_balance_weight: weight of the routers' load-balance loss.
        m: segments of a backbone vector. Default 2 (1 for a plain model).
        n: slots of the wide state, n >= m. Default 2m (1 for a plain model).
        r: the virtual width factor in place of m and n (`slots_for_width` chooses them), or with m alone in
            place of n. Afterwards it holds 0; `width_factor` tells r.
        plain: an ordinary pre-norm Transformer: no GHC, no wide state, no reduce. `m = n = 1` without it is a
            model with a one-slot GHC (hyper-connections of rate 1), which is another thing.
        dynamic: coefficients depend on the token (paper) or are the static matrices alone.
        carry: "ghc" learns the n x n carry; "identity" fixes it, which leaves 2m columns of coefficients;
            "sinkhorn" (n <= 16) and "perm" (n <= 4) learn a doubly stochastic carry, near the identity at first.
        embedding: "table" is V x rD; "linear" is V x D and an expansion D -> rD; "repeat" copies the D
            segments into the slots in turn (not in the paper; starts from symmetric slots).
        reduce: "linear" is a D x rD matrix; "slot" an n x m matrix over the slots; "sum" adds slots j, j + m,
            and so on into segment j mod m (as hyper-connections do).
        reduce_norm: "rms" or "layer" norm of groups of D before the reduce; "auto" is "rms" where r is an integer.
        reduce_init: "normal" with standard deviation 1/sqrt(rD), or "identity": [I_D, 0, ...], with which a
            new model computes exactly what the plain model of the same sub-layers computes (with reduce_norm
            "none").
        read_init: "first": every sub-layer starts by reading slots 0..m-1, as in the paper; "rotate": sub-layer k
            starts at slot k m mod n, as in hyper-connections (needs a whole r).
        dyn_scale_init: initial value of the dynamic scales S.
        mtp_depth: extra tokens predicted at each position, 0 to 3.
        mtp_loss_weight: weight of the multi-token losses; each depth gets weight / mtp_depth.
        embedding_init_std: standard deviation of the embedding table. It and `init_std` matter as much as r in
            small models: 0.02 for both cost a model of D = 64 0.6 nats after 300 steps of 1,024 tokens.
        init_std: standard deviation of the backbone matrices and the LM head; output projections get
            1/sqrt(2 layers) of it. Default: sqrt(2 / 5D), 0.056 at D = 128 and 0.014 at D = 2048.
        rope_theta: base of the rotary position encoding.
        norm_eps: epsilon of every RMSNorm.
        tie_embeddings: the LM head is the embedding table; needs a table of D columns.

    Raises:
        ValueError: a size or an option is out of range; the message says which and what to write instead.
    """

    vocabulary_size: int
    d_model: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 0
    ffn_width: int = 0
    experts: int = 0
    experts_per_token: int = 2
    load_balance_weight: float = 0.01
    m: int = 0
    n: int = 0
    r: float = 0.0
    plain: bool = False
    dynamic: bool = True
    carry: Carry = "ghc"
    embedding: Embedding = "table"
    reduce: ReduceKind = "linear"
    reduce_norm: ReduceNorm = "auto"
    reduce_init: ReduceInit = "normal"
    read_init: Literal["first", "rotate"] = "first"
    dyn_scale_init: float = 1.0
    mtp_depth: int = 0
    mtp_loss_weight: float = 0.3
    embedding_init_std: float = 0.3
    init_std: float = 0.0
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tie_embeddings: bool = False

    def __post_init__(self) -> None:
        self._derive()
        for name in ("vocabulary_size", "d_model", "layers", "heads", "kv_heads", "ffn_width", "m", "n"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"model.{name} is {value!r}; it must be a positive whole number")
        self._check_width()
        self._check_attention()
        self._check_options()

    def _derive(self) -> None:
        if self.r:
            self._slots_of_factor()
        derived: dict[str, float] = {
            "kv_heads": self.heads,
            "ffn_width": -(-8 * self.d_model // (3 * _FFN_MULTIPLE)) * _FFN_MULTIPLE,
            "m": 1 if self.plain else 2,
            "init_std": math.sqrt(2 / (5 * max(1, self.d_model))),
        }
        for name, value in derived.items():
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)
        if self.n == 0:
            object.__setattr__(self, "n", 1 if self.plain else 2 * self.m)

    def _slots_of_factor(self) -> None:
        """Turns r into m and n."""
        m, n = (self.m, round(self.r * self.m)) if self.m and math.isfinite(self.r) else slots_for_width(self.r)
        if abs(self.r * m - n) > 1e-9 * n or (self.n and self.n != n):
            raise ValueError(
                f"model.r = {self.r} does not fit m = {self.m}, n = {self.n or self.r * m}: n = r m must be a whole "
                "number; give r alone, r and m, or m and n"
            )
        for name, value in (("m", m), ("n", n), ("r", 0.0)):
            object.__setattr__(self, name, value)

    def _check_width(self) -> None:
        if self.plain and (self.m, self.n) != (1, 1):
            raise ValueError(
                f"model.plain is true but m = {self.m}, n = {self.n}: a plain model has no slots; "
                "remove m and n, or remove plain"
            )
        if self.n < self.m:
            raise ValueError(
                f"model.n is {self.n}, less than m = {self.m}: the wide state needs n >= m slots "
                f"(n = m is virtual width 1; n = {2 * self.m} is width 2)"
            )
        if self.d_model % self.m:
            raise ValueError(
                f"model.d_model = {self.d_model} is not a multiple of m = {self.m}; "
                f"use d_model = {self.d_model // self.m * self.m or self.m} or another m"
            )

    def _check_attention(self) -> None:
        if self.d_model % self.heads or (self.d_model // self.heads) % 2:
            raise ValueError(
                f"model.d_model / model.heads = {self.d_model} / {self.heads}: "
                "the width of a head must be a whole, even number"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"model.heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")

    def _check_options(self) -> None:
        choices: dict[str, tuple[str, ...]] = {
            "carry": tuple(CARRY_LIMITS),
            "embedding": ("table", "linear", "repeat"),
            "reduce": ("linear", "slot", "sum"),
            "reduce_norm": ("auto", "rms", "layer", "none"),
            "reduce_init": ("normal", "identity"),
            "read_init": ("first", "rotate"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"model.{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        if self.n > CARRY_LIMITS[self.carry]:
            raise ValueError(
                f"model.carry: {self.carry!r} takes up to {CARRY_LIMITS[self.carry]} slots, not n = {self.n}; "
                "use 'ghc' or 'identity'"
            )
        if self.read_init == "rotate" and self.n % self.m:
            raise ValueError(f"model.read_init: 'rotate' needs a whole n/m, not {self.n}/{self.m}; use 'first'")
        if self.reduce_norm in ("rms", "layer") and self.n % self.m:
            raise ValueError(
                f"model.reduce_norm: {self.reduce_norm!r} needs groups of d_model, but n/m = {self.n}/{self.m} is no "
                "whole number; use 'auto' or 'none'"
            )
        if self.embedding == "repeat" and self.n % self.m:
            raise ValueError(
                f"model.embedding: 'repeat' needs a whole n/m, not {self.n}/{self.m}; use 'table' or 'linear'"
            )
        if self.tie_embeddings and self.embedding == "table" and self.n != self.m:
            raise ValueError(
                "model.tie_embeddings needs an embedding table of d_model columns; with n > m use embedding: linear"
            )
        if self.experts < 0 or (self.experts and not 1 <= self.experts_per_token <= self.experts):
            raise ValueError(
                f"model.experts_per_token is {self.experts_per_token}; it must be 1 to the number of experts, "
                f"{self.experts}"
            )
        if not 0 <= self.mtp_depth <= MAX_MTP_DEPTH:
            raise ValueError(f"model.mtp_depth is {self.mtp_depth}; it must be 0 to {MAX_MTP_DEPTH}")
        positive = ("embedding_init_std", "init_std", "rope_theta", "norm_eps")
        for name in (*positive, "mtp_loss_weight", "load_balance_weight", "dyn_scale_init"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0 or (value == 0 and name in positive):
                raise ValueError(f"model.{name} is {value!r}; it must be a positive, finite number")

    @property
    def slot_width(self) -> int:
        """d = D/m = rD/n: width of one slot and of one segment."""
        return self.d_model // self.m

    @property
    def wide_width(self) -> int:
        """rD = n d: width of the wide state of one token."""
        return self.n * self.slot_width

    @property
    def width_factor(self) -> Fraction:
        """r = n/m."""
        return Fraction(self.n, self.m)

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.heads

    @property
    def groups_reduce_norm(self) -> bool:
        """Whether a grouped norm stands before the reduce."""
        return self.reduce_norm in ("rms", "layer") or (self.reduce_norm == "auto" and self.n % self.m == 0)

    def to_dict(self) -> dict[str, Any]:
        """Plain values by name; `from_dict` gives the same config back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> VWNConfig:
        """The config that `to_dict` described. Raises ValueError on unknown names."""
        unknown = sorted(set(values) - {field.name for field in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"unknown model settings: {', '.join(unknown)}")
        return cls(**values)


def slots_for_width(r: float) -> tuple[int, int]:
    """(m, n) for a virtual width factor `r`, by the paper's experience.

    Its 1.5x models use (2, 3), and more than four segments changed little, so other widths use the smallest m
    of at least 4 that makes n = r m a whole number.

    Raises:
        ValueError: r is below 1 or not a fraction with a denominator of at most 8.
    """
    exact = Fraction(r).limit_denominator(8) if math.isfinite(r) else Fraction(0)
    if r < 1 or abs(float(exact) - r) > 1e-9:
        raise ValueError(f"r = {r!r}: the width factor is at least 1 and a multiple of 1/2 .. 1/8")
    if exact == Fraction(3, 2):
        return 2, 3
    m = exact.denominator * math.ceil(4 / exact.denominator)
    return m, int(exact * m)
