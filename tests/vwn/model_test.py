"""The whole model: equals the plain Transformer where it must, no leaks between documents, MTP, options."""

import itertools
import subprocess
import sys

import pytest
import torch
from torch.nn import functional

from widestream.vwn import KeyValueCache, VWNConfig, VWNTransformer, param_groups, slots_for_width

WIDTHS = [(1, 4), (2, 3), (3, 5), (4, 8), (1, 1), (4, 4)]
SIZES = {"vocabulary_size": 61, "d_model": 24, "layers": 2, "heads": 3, "ffn_width": 40}


def copy_backbone(plain, wide):
    """Gives the wide model the plain sub-layers, head, final norm and, in its first slots, embedding."""
    wide_state = wide.state_dict()
    for name, value in plain.state_dict().items():
        if name == "embedding.table.weight":
            table = wide_state[name]
            table.normal_(std=1.0)
            table[:, : value.shape[1]] = value
        else:
            wide_state[name].copy_(value)


def pair(m, n, **options):
    torch.manual_seed(1)
    plain = VWNTransformer(VWNConfig(**SIZES, plain=True, embedding_init_std=0.5)).double()
    wide = VWNTransformer(VWNConfig(**SIZES, m=m, n=n, reduce_norm="none", reduce_init="identity", **options)).double()
    copy_backbone(plain, wide)
    return plain, wide


def batch(seed=0, rows=3, length=20):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 61, (rows, length), generator=generator)
    cu = torch.tensor([0, 7, 20, 40, 43, 60], dtype=torch.int32)
    positions = torch.cat([torch.arange(int(b - a)) for a, b in itertools.pairwise(cu)]).view(rows, length)
    return tokens, positions, cu


def loss_of(model, tokens, positions, cu):
    logits = model.logits(model(tokens, positions, cu).hidden[0])
    return functional.cross_entropy(logits, tokens.flatten().roll(-1))


@pytest.mark.parametrize(("m", "n"), WIDTHS)
@pytest.mark.parametrize(
    "options", [{}, {"dynamic": False}, {"carry": "identity"}], ids=["dynamic", "static", "identity"]
)
def test_a_new_model_equals_the_plain_transformer(m, n, options):
    plain, wide = pair(m, n, **options)
    tokens, positions, cu = batch()
    expected = plain.logits(plain(tokens, positions, cu).hidden[0])
    found = wide.logits(wide(tokens, positions, cu).hidden[0])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(("m", "n"), WIDTHS)
def test_identity_coefficients_train_as_the_plain_transformer(m, n):
    """Two AdamW steps with GHC and reduce frozen: losses, gradients and weights stay equal."""
    plain, wide = pair(m, n)
    for name, parameter in wide.named_parameters():
        if "mixer" in name or "reduce" in name:
            parameter.requires_grad_(False)
    optimizers = [torch.optim.AdamW(param_groups(model, 0.1), lr=0.01) for model in (plain, wide)]
    ours = dict(wide.named_parameters())
    for step in range(2):
        losses = []
        for model, optimizer in zip((plain, wide), optimizers, strict=True):
            optimizer.zero_grad()
            loss = loss_of(model, *batch(step))
            loss.backward()
            losses.append(loss)
        torch.testing.assert_close(losses[1], losses[0], atol=1e-12, rtol=1e-10)
        for name, parameter in plain.named_parameters():
            gradient = ours[name].grad
            if name == "embedding.table.weight":
                gradient = gradient[:, : parameter.shape[1]]
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-11, rtol=1e-8, msg=name)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize(("m", "n"), WIDTHS)
@pytest.mark.parametrize("embedding", ["table", "linear"])
def test_every_parameter_gets_a_gradient(m, n, embedding):
    """One optimizer step first: a zero W lets no gradient through to the gain."""
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, m=m, n=n, mtp_depth=2, embedding=embedding))
    tokens, positions, cu = batch()
    for _ in range(2):
        model.zero_grad()
        output = model(tokens, positions, cu)
        sum(functional.cross_entropy(model.logits(h), tokens.flatten()) for h in output.hidden).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)
    missing = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert missing == []


@pytest.mark.parametrize("options", [{"m": 2, "n": 3}, {"m": 1, "n": 2, "kv_heads": 1}, {"plain": True}])
def test_no_document_sees_another(options):
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, mtp_depth=2, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mixer.weight" in name:
                parameter.normal_()
    tokens, positions, cu = batch()
    changed = tokens.clone()
    changed.view(-1)[:7] = (changed.view(-1)[:7] + 5) % 61
    before, after = model(tokens, positions, cu), model(changed, positions, cu)
    for one, two in zip(before.hidden, after.hidden, strict=True):
        assert torch.equal(one[7:], two[7:])
        assert not torch.equal(one[:7], two[:7])


def test_nothing_sees_a_later_token():
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, mtp_depth=1)).double()
    tokens, positions, cu = batch()
    changed = tokens.clone()
    changed.view(-1)[15] = (changed.view(-1)[15] + 1) % 61  # inside the document 7..20
    before, after = model(tokens, positions, cu), model(changed, positions, cu)
    for depth, (one, two) in enumerate(zip(before.hidden, after.hidden, strict=True)):
        differs = (one != two).any(1)
        first = int(differs.nonzero()[0])
        assert first == 15 - depth, "depth k reads k tokens ahead and no more"
        torch.testing.assert_close(one[: 15 - depth], two[: 15 - depth], atol=0, rtol=0)


def test_documents_alone_and_packed_give_the_same_logits():
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=3, mtp_depth=1)).double()
    tokens, positions, cu = batch()
    packed = model(tokens, positions, cu)
    for start, end in itertools.pairwise(cu.tolist()):
        alone = model(tokens.flatten()[start:end].unsqueeze(0))
        for one, two in zip(packed.hidden, alone.hidden, strict=True):
            torch.testing.assert_close(one[start:end], two, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("options", [{"m": 2, "n": 3}, {"m": 1, "n": 2, "kv_heads": 1}, {"plain": True}])
def test_decoding_with_a_cache_gives_the_logits_of_the_whole_sequence(options):
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, **options)).double()
    tokens = batch()[0][:1]
    expected = model.logits(model(tokens).hidden[0])
    cache = KeyValueCache()
    for start, end in [(0, 4), (4, 5), (5, 6), (6, 13), (13, 20)]:
        found = model.decode(tokens[0, start:end], cache)
        assert cache.length == end
        torch.testing.assert_close(found, expected[end - 1], atol=1e-12, rtol=1e-10)


def test_wide_state_stays_float32_under_autocast():
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=3, mtp_depth=1))
    seen = []
    for module in model.modules():
        if type(module).__name__ == "GHCMixer":
            original = module.enter
            module.enter = lambda h, original=original: seen.append(original(h)) or seen[-1]
    tokens, positions, cu = batch()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(tokens, positions, cu)
    assert len(seen) == 6 and all(held[0].dtype == torch.float32 for _, held in seen)
    assert output.wide.dtype == torch.float32


def test_param_groups_decay_matrices_only():
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, embedding="linear", mtp_depth=1))
    groups = {group["name"]: group for group in param_groups(model, 0.1)}
    names = {name for group in groups.values() for name in group["names"]}
    assert names == {name for name, _ in model.named_parameters()}
    assert groups["decay"]["weight_decay"] == 0.1 and groups["no_decay"]["weight_decay"] == 0.0
    for name in groups["decay"]["names"]:
        assert name.endswith(".weight") and "norm" not in name and "table" not in name
    undecayed = groups["no_decay"]["names"]
    for ending in ("mixer.static", "mixer.scale", "mixer.gain", "norm.weight", "table.weight"):
        assert any(name.endswith(ending) for name in undecayed), ending
    assert any(name.endswith("mixer.weight") for name in groups["decay"]["names"])


def test_tied_head_is_the_table_and_appears_once():
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, embedding="linear", tie_embeddings=True))
    assert model.head.weight is model.embedding.table.weight
    names = [name for group in param_groups(model, 0.1) for name in group["names"]]
    assert "embedding.table.weight" in names and "head.weight" not in names


def test_repeat_embedding_starts_with_equal_slots():
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, embedding="repeat"))
    e = model.embedding(torch.tensor([[3, 5]]))
    assert e.shape == (1, 2, 48) and torch.equal(e[..., :24], e[..., 24:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"m": 3, "n": 2}, "less than m = 3"),
        ({"m": 5, "n": 5}, "not a multiple of m = 5"),
        ({"carry": "sinkhorn", "m": 1, "n": 17}, "'sinkhorn' takes up to 16 slots, not n = 17"),
        ({"carry": "perm", "m": 1, "n": 5}, "'perm' takes up to 4 slots"),
        ({"carry": "x"}, "must be one of ghc, identity"),
        ({"read_init": "rotate", "m": 2, "n": 3}, "needs a whole n/m"),
        ({"r": 1.5, "m": 2, "n": 4}, "does not fit m = 2, n = 4"),
        ({"r": 1.5, "m": 3}, "n = r m must be a whole"),
        ({"r": 0.5}, "width factor"),
        ({"plain": True, "n": 2}, "plain model has no slots"),
        ({"heads": 5}, "width of a head"),
        ({"kv_heads": 2}, "not a multiple of kv_heads"),
        ({"m": 2, "n": 3, "reduce_norm": "rms"}, "whole number"),
        ({"m": 2, "n": 3, "embedding": "repeat"}, "whole n/m"),
        ({"tie_embeddings": True}, "embedding: linear"),
        ({"mtp_depth": 4}, "0 to 3"),
        ({"layers": 0}, "positive whole number"),
        ({"norm_eps": float("nan")}, "finite"),
    ],
)
def test_config_refuses_with_the_reason(options, message):
    with pytest.raises(ValueError, match=message):
        VWNConfig(**{**SIZES, **options})


def test_config_round_trip_and_derived_values():
    config = VWNConfig(vocabulary_size=100, d_model=128)
    assert (config.m, config.n, config.kv_heads, config.ffn_width) == (2, 4, 4, 352)
    assert (config.slot_width, config.wide_width) == (64, 256)
    assert VWNConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="unknown model settings: widht"):
        VWNConfig.from_dict({**config.to_dict(), "widht": 3})


@pytest.mark.parametrize(("r", "slots"), [(1, (4, 4)), (1.5, (2, 3)), (2, (4, 8)), (8, (4, 32)), (2.5, (4, 10))])
def test_slots_for_width(r, slots):
    assert slots_for_width(r) == slots


@pytest.mark.parametrize("r", [0.5, 1.37, float("inf")])
def test_slots_for_width_refuses(r):
    with pytest.raises(ValueError, match="width factor"):
        slots_for_width(r)


def test_importing_the_package_loads_no_torch():
    code = "import sys, widestream.vwn as v; v.VWNConfig(vocabulary_size=9); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_wrong_input_shapes_are_refused():
    model = VWNTransformer(VWNConfig(**SIZES))
    with pytest.raises(ValueError, match="tokens must be"):
        model(torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="position_ids"):
        model(torch.zeros(1, 4, dtype=torch.int64), torch.zeros(1, 5, dtype=torch.int64))


def test_a_width_factor_picks_the_slots():
    assert (VWNConfig(**SIZES, r=4).m, VWNConfig(**SIZES, r=4).n) == (4, 16)
    assert VWNConfig(**SIZES, r=1.5, m=4) == VWNConfig(**SIZES, m=4, n=6)
    config = VWNConfig(**SIZES, r=2)
    assert VWNConfig.from_dict(config.to_dict()) == config and config.width_factor == 2


@pytest.mark.parametrize("reduce", ["slot", "sum"])
@pytest.mark.parametrize("norm", ["layer", "rms", "none"])
def test_slot_and_sum_reduce(reduce, norm):
    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, reduce=reduce, reduce_norm=norm)).double()
    h = torch.randn(5, 48, dtype=torch.float64)
    grouped = h.view(5, 2, 24)
    if norm == "layer":
        grouped = grouped - grouped.mean(-1, keepdim=True)
    if norm != "none":
        grouped = grouped / (grouped.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    slots = grouped.reshape(5, 4, 12)
    matrix = torch.eye(2).repeat(2, 1) if reduce == "sum" else model.exit.reduce.linear.matrix
    expected = torch.stack([sum(matrix[i, k] * slots[:, i] for i in range(4)) for k in range(2)], dim=1)
    torch.testing.assert_close(model.exit.reduce(h), expected.flatten(1))
    if reduce == "sum":
        torch.testing.assert_close(expected, slots[:, :2] + slots[:, 2:])


def test_rotating_reads_start_one_stream_further_in_each_sub_layer():
    model = VWNTransformer(VWNConfig(**SIZES, m=2, n=4, read_init="rotate"))
    starts = [[int(column.argmax()) for column in module.static[:, :2].T] for module in mixers(model)]
    assert starts == [[0, 1], [2, 3], [0, 1], [2, 3]]


def mixers(model):
    return [module for module in model.modules() if type(module).__name__ == "GHCMixer"]


@pytest.mark.parametrize("carry", ["sinkhorn", "perm"])
def test_a_constrained_model_starts_near_the_plain_transformer_and_learns(carry):
    plain, wide = pair(2, 4, carry=carry)
    tokens, positions, cu = batch()
    expected = plain.logits(plain(tokens, positions, cu).hidden[0])
    found = wide.logits(wide(tokens, positions, cu).hidden[0])
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.05)
    first = loss_of(wide, tokens, positions, cu)
    first.backward()
    with torch.no_grad():
        for parameter in wide.parameters():
            parameter.add_(parameter.grad, alpha=-0.1)
    assert loss_of(wide, tokens, positions, cu) < first
