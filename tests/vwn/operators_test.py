"""The fused operators against the float64 composite path: values, derivatives, torch.compile, refusals."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from widestream.vwn import GHC, GHCMixer, SegmentMix, VWNConfig, operators

pytestmark = pytest.mark.skipif(not operators.load(), reason="the package was built without torch's operators")

OPS = torch.ops.widestream
CASES = [
    (1, 4, "ghc", True),
    (2, 3, "ghc", True),
    (3, 5, "ghc", True),
    (4, 8, "ghc", True),
    (8, 16, "ghc", True),
    (8, 64, "ghc", True),
    (1, 1, "ghc", True),
    (4, 4, "ghc", False),
    (2, 3, "identity", True),
    (2, 3, "identity", False),
    (2, 5, "sinkhorn", True),
    (8, 16, "sinkhorn", True),
    (2, 3, "sinkhorn", False),
    (2, 3, "perm", True),
    (1, 4, "perm", True),
    (2, 4, "perm", False),
]


def make_mixer(m, n, carry="ghc", dynamic=True, slot_width=6):
    torch.manual_seed(m * 100 + n)
    mixer = GHCMixer(m * slot_width, m, n, carry=carry, dynamic=dynamic)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return mixer


def reference(mixer):
    """The same parameters in float64: the composite path computes it."""
    double = GHCMixer(mixer.d_model, mixer.m, mixer.n, carry=mixer.carry, dynamic=mixer.dynamic, eps=mixer.eps).double()
    double.load_state_dict(mixer.state_dict())
    return double


def connect(mixer, h, weight):
    """One connection around a sub-layer tanh(x W)."""
    x, held = mixer.enter(h)
    return mixer.leave(h, torch.tanh(x @ weight.to(x.dtype)), held)


def results(mixer, h, weight, gradient, function=connect):
    h = h.clone().requires_grad_()
    weight = weight.clone().requires_grad_()
    out = function(mixer, h, weight)
    leaves = {"h": h, "W": weight, **dict(mixer.named_parameters())}
    found = torch.autograd.grad(out, list(leaves.values()), gradient)
    return {"out": out.detach(), **dict(zip(leaves, found, strict=True))}


def assert_near(found, expected, tolerance):
    for name, value in expected.items():
        scale = max(1.0, float(value.abs().max()))
        error = float((found[name].double() - value.double()).abs().max()) if value.numel() else 0.0
        assert error <= tolerance * scale, f"{name}: {error / scale}"


def inputs(mixer, tokens, dtype=torch.float32):
    h = torch.randn(tokens, mixer.n, mixer.slot_width).to(dtype)
    weight = torch.randn(mixer.d_model, mixer.d_model) * mixer.d_model**-0.5
    return h, weight, torch.randn(tokens, mixer.n, mixer.slot_width).to(dtype)


def by_separate_operators(mixer, h, weight):
    number = operators.CARRY_NUMBERS[mixer.carry]
    x, coefficients, _, _ = OPS.ghc_pre(h, *mixer.operator_parameters(), mixer.m, number, mixer.eps)
    return OPS.ghc_post(h, torch.tanh(x @ weight.to(x.dtype)), coefficients, mixer.m, number)


@pytest.mark.parametrize(("m", "n", "carry", "dynamic"), CASES)
@pytest.mark.parametrize("function", [connect, by_separate_operators])
def test_values_and_gradients_equal_the_float64_formulas(m, n, carry, dynamic, function):
    mixer = make_mixer(m, n, carry, dynamic)
    h, weight, gradient = inputs(mixer, 140)
    assert mixer.fused(h)
    double = reference(mixer)
    assert not double.fused(h.double())
    expected = results(double, h.double(), weight.double(), gradient.double())
    assert_near(results(mixer, h, weight, gradient, function), expected, 1e-5)


@pytest.mark.parametrize(("m", "n", "carry", "dynamic"), [CASES[1], CASES[4], CASES[7], CASES[8], CASES[10]])
def test_a_bfloat16_state_keeps_float32_coefficients_and_parameter_gradients(m, n, carry, dynamic):
    mixer = make_mixer(m, n, carry, dynamic, slot_width=20)
    h, _, gradient = inputs(mixer, 140, torch.bfloat16)
    number, c = operators.CARRY_NUMBERS[carry], mixer.operator_parameters()
    x, coefficients, _, _ = OPS.ghc_pre(h, *c, m, number, mixer.eps)
    double = reference(mixer)
    exact = double.coefficients(h.double())
    assert x.dtype == torch.bfloat16 and coefficients.dtype == torch.float32
    torch.testing.assert_close(coefficients.double(), exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(x.double(), double.read(h.double(), exact), atol=1e-2, rtol=2**-8)
    z = torch.randn(140, mixer.d_model).bfloat16()
    new = OPS.ghc_post(h, z, coefficients, m, number)
    torch.testing.assert_close(new.double(), double.write(h.double(), z.double(), exact), atol=1e-2, rtol=2**-8)
    # Gradients of the parameters: no worse than float32 rounding of the same bfloat16 inputs.
    leaves = dict(mixer.named_parameters())
    h32, x_gradient = h.double().requires_grad_(), torch.randn_like(x)
    double_leaves = dict(double.named_parameters())
    total = (double.read(h32, double.coefficients(h32)) * x_gradient.double()).sum()
    total = total + (double.write(h32, z.double(), double.coefficients(h32)) * gradient.double()).sum()
    expected = dict(zip(double_leaves, torch.autograd.grad(total, list(double_leaves.values())), strict=True))
    x2, held = mixer.enter(h.requires_grad_())
    new = mixer.leave(h, z, held)
    found = torch.autograd.grad((x2, new), list(leaves.values()), (x_gradient, gradient))
    assert all(g.dtype == torch.float32 for g in found)
    assert_near(dict(zip(leaves, found, strict=True)), expected, 1e-5)


def test_a_sub_layers_output_may_have_another_dtype_than_the_state():
    mixer = make_mixer(2, 3)
    h, _, gradient = inputs(mixer, 20)
    z = torch.randn(20, mixer.d_model).bfloat16().requires_grad_()
    x, held = mixer.enter(h)
    new = mixer.leave(h, z, held)
    assert new.dtype == torch.float32
    (found,) = torch.autograd.grad(new, z, gradient)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(new, mixer.leave(h, z.float(), held))
    double = reference(mixer)
    exact = z.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(
        double.write(h.double(), exact, double.coefficients(h.double())), exact, gradient.double()
    )
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=2**-8)
    assert x.dtype == torch.float32


@pytest.mark.parametrize("dynamic", [True, False])
def test_post_pre_equals_post_then_pre_bit_for_bit(dynamic):
    for dtype in (torch.float32, torch.bfloat16):
        first, second = make_mixer(2, 3, dynamic=dynamic), make_mixer(2, 3, dynamic=dynamic, slot_width=6)
        h, _, _ = inputs(first, 70, dtype)
        z = torch.randn(70, first.d_model).to(dtype)
        _, coefficients, _, _ = OPS.ghc_pre(h, *first.operator_parameters(), 2, 0, 1e-6)
        new = OPS.ghc_post(h, z, coefficients, 2, 0)
        expected = (new, *OPS.ghc_pre(new, *second.operator_parameters(), 2, 0, 1e-6))
        found = OPS.ghc_post_pre(h, z, coefficients, *second.operator_parameters(), 2, 0, 1e-6)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_gradients_of_post_pre_equal_those_of_its_parts():
    first, second = make_mixer(2, 3), make_mixer(2, 3)
    h, _, gradient = inputs(first, 30)
    z = torch.randn(30, first.d_model)
    h.requires_grad_(), z.requires_grad_()
    coefficients = OPS.ghc_pre(h, *first.operator_parameters(), 2, 0, 1e-6)[1]
    leaves = (h, z, *first.parameters(), *second.parameters())
    x_gradient = torch.randn(30, first.d_model)

    def gradients(new, x, next_coefficients):
        ups = (gradient, x_gradient, torch.ones_like(next_coefficients))
        return torch.autograd.grad((new, x, next_coefficients), leaves, ups, retain_graph=True)

    found = gradients(*OPS.ghc_post_pre(h, z, coefficients, *second.operator_parameters(), 2, 0, 1e-6)[:3])
    new = OPS.ghc_post(h, z, coefficients, 2, 0)
    expected = gradients(new, *OPS.ghc_pre(new, *second.operator_parameters(), 2, 0, 1e-6)[:2])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [True, False])
def test_rebuild_gives_the_states_of_the_forward_pass_bit_for_bit(dynamic):
    for dtype in (torch.float32, torch.bfloat16):
        mixers = [make_mixer(2, 3, dynamic=dynamic) for _ in range(4)]
        h, _, _ = inputs(mixers[0], 50, dtype)
        state, outputs, expected = h, [], []
        for mixer in mixers:
            x, held = mixer.enter(state)
            outputs.append(torch.tanh(x))
            state = mixer.leave(state, outputs[-1], held)
            expected.append(state)
        found = operators.rebuild(h, outputs, [mixer.operator_parameters() for mixer in mixers], 2, "ghc", 1e-6)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_results_are_bit_equal_whatever_the_number_of_threads():
    mixer = make_mixer(4, 8)
    h, weight, gradient = inputs(mixer, 1500)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            x, held = mixer.enter(h.requires_grad_())
            new = mixer.leave(h, x * 0.5, held)
            found.append([x, new, *torch.autograd.grad(new, [h, *mixer.parameters()], gradient)])
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))
    assert weight.numel()


@pytest.mark.parametrize("group", [4, 12, 24])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_group_norm_equals_the_float64_formula(group, dtype):
    torch.manual_seed(0)
    x, gain = torch.randn(140, 24).to(dtype).requires_grad_(), torch.randn(24).requires_grad_()
    up = torch.randn(140, 24).to(dtype)
    y = operators.group_norm(x, gain, group, 1e-6)
    found = torch.autograd.grad(y, (x, gain), up)
    xd, gd = x.detach().double().requires_grad_(), gain.detach().double().requires_grad_()
    normed = nn.functional.rms_norm(xd.view(140, -1, group), (group,), None, 1e-6).view(140, 24) * gd
    expected = torch.autograd.grad(normed, (xd, gd), up.double())
    low = dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), normed, atol=1e-5, rtol=2**-8 if low else 1e-5)
    torch.testing.assert_close(found[0].double(), expected[0], atol=1e-2 if low else 1e-5, rtol=2**-8 if low else 1e-5)
    torch.testing.assert_close(found[1].double(), expected[1], atol=1e-4, rtol=1e-5)


def test_segment_mix_equals_the_float64_module():
    torch.manual_seed(0)
    mix = SegmentMix(VWNConfig(vocabulary_size=7, d_model=12, layers=1, heads=2, ffn_width=8, m=2, n=3))
    with torch.no_grad():
        mix.state_norm.weight.normal_()
    exact = copy.deepcopy(mix).double()
    h, e = (torch.randn(140, 18, requires_grad=True) for _ in range(2))
    hd, ed = (x.detach().double().requires_grad_() for x in (h, e))
    found, expected = mix(h, e), exact(hd, ed)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    up = torch.randn(140, 18)
    ours = torch.autograd.grad(found, [h, e, *mix.parameters()], up)
    for a, b in zip(ours, torch.autograd.grad(expected, [hd, ed, *exact.parameters()], up.double()), strict=True):
        torch.testing.assert_close(a.double(), b, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [True, False])
def test_opcheck(dynamic):
    mixer = make_mixer(2, 3, dynamic=dynamic)
    h, _, gradient = inputs(mixer, 5)
    parameters = tuple(None if p is None else p.detach().requires_grad_() for p in mixer.operator_parameters())
    z = torch.randn(5, mixer.d_model, requires_grad=True)
    x, coefficients, angle, rho = (t.detach() for t in OPS.ghc_pre(h, *parameters, 2, 0, 1e-6))
    coefficients.requires_grad_()
    h.requires_grad_()
    constants = tuple(None if p is None else p.detach() for p in parameters)
    h0, z0, c0 = h.detach(), z.detach(), coefficients.detach()
    torch.library.opcheck(OPS.ghc_pre.default, (h, *parameters, 2, 0, 1e-6))
    torch.library.opcheck(OPS.ghc_post.default, (h, z, coefficients, 2, 0))
    torch.library.opcheck(OPS.ghc_post_pre.default, (h, z, coefficients, *parameters, 2, 0, 1e-6))
    torch.library.opcheck(OPS.ghc_post_backward.default, (gradient, h0, z0, c0, 2, 0))
    torch.library.opcheck(OPS.ghc_post_gradient_z.default, (gradient, c0, 2, 0, torch.float32))
    torch.library.opcheck(OPS.ghc_backward.default, (x, gradient, None, h0, z0, angle, rho, *constants, 2, 0))
    lists = ([constants[0]], *([] if p is None else [p] for p in constants[1:]))
    torch.library.opcheck(OPS.ghc_rebuild.default, (h0, [z0], *lists, 2, 0, 1e-6))


def test_opcheck_of_group_norm():
    x, gain = torch.randn(5, 12, requires_grad=True), torch.randn(12, requires_grad=True)
    torch.library.opcheck(OPS.group_norm.default, (x, gain, 4, 1e-6))
    _, rho = OPS.group_norm(x.detach(), gain.detach(), 4, 1e-6)
    torch.library.opcheck(OPS.group_norm_backward.default, (x.detach(), x.detach(), gain.detach(), rho, 4))


def test_compiled_without_graph_breaks_it_gives_the_same():
    torch.manual_seed(0)
    ghc = GHC(nn.Linear(12, 12), d_model=12, m=2, n=3)
    with torch.no_grad():
        for parameter in ghc.parameters():
            parameter.copy_(torch.randn_like(parameter))
    h, gradient = torch.randn(2, 7, 3, 6, requires_grad=True), torch.randn(2, 7, 3, 6)
    leaves = [h, *ghc.parameters()]
    expected = torch.autograd.grad(ghc(h), leaves, gradient)
    compiled = torch.compile(ghc, fullgraph=True)
    out = compiled(h)
    torch.testing.assert_close(out, ghc(h))
    for a, b in zip(torch.autograd.grad(out, leaves, gradient), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_empty_and_strided_states_are_taken():
    mixer = make_mixer(2, 3)
    h = torch.zeros(0, 3, 6, requires_grad=True)
    x, held = mixer.enter(h)
    new = mixer.leave(h, x, held)
    assert x.shape == (0, 12) and new.shape == (0, 3, 6)
    found = torch.autograd.grad(new, [h, *mixer.parameters()], torch.zeros(0, 3, 6))
    assert all(not g.any() for g in found)
    strided = torch.randn(6, 3, 9).permute(2, 1, 0)
    assert not strided.is_contiguous()
    x, held = mixer.enter(strided)
    same, same_held = mixer.enter(strided.contiguous())
    assert torch.equal(x, same)
    z = torch.randn(12, 9).T
    assert torch.equal(mixer.leave(strided, z, held), mixer.leave(strided.contiguous(), z.contiguous(), same_held))


def test_a_state_that_needs_no_gradient_still_gives_one_to_the_parameters():
    mixer = make_mixer(2, 3)
    h, weight, gradient = inputs(mixer, 20)
    found = torch.autograd.grad(connect(mixer, h, weight), list(mixer.parameters()), gradient)
    double = reference(mixer)
    expected = torch.autograd.grad(
        connect(double, h.double(), weight.double()), list(double.parameters()), gradient.double()
    )
    assert_near(dict(enumerate(found)), dict(enumerate(expected)), 1e-5)


def test_a_sub_layer_that_ignores_its_input_still_passes_gradients():
    mixer = make_mixer(2, 3)
    h, _, gradient = inputs(mixer, 20)
    h.requires_grad_()
    z = torch.randn(20, 12)
    _, held = mixer.enter(h)
    found = torch.autograd.grad(mixer.leave(h, z, held), [h, *mixer.parameters()], gradient)
    double, hd = reference(mixer), h.detach().double().requires_grad_()
    new = double.write(hd, z.double(), double.coefficients(hd))
    expected = torch.autograd.grad(new, [hd, *double.parameters()], gradient.double())
    assert_near(dict(enumerate(found)), dict(enumerate(expected)), 1e-5)


def test_autocast_changes_nothing_in_the_operators():
    mixer = make_mixer(2, 3)
    h, _, _ = inputs(mixer, 20)
    exact = OPS.ghc_pre(h, *mixer.operator_parameters(), 2, 0, 1e-6)
    with torch.autocast("cpu", torch.bfloat16):
        found = OPS.ghc_pre(h, *mixer.operator_parameters(), 2, 0, 1e-6)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(found, exact, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h": torch.zeros(4, 3)}, r"must be \[tokens, n, d\].*it is \[4, 3\]"),
        ({"h": torch.zeros(4, 3, 6).double()}, r"must be float32 or bfloat16.*\[4, 3, 6\]"),
        ({"statics": torch.zeros(3, 8)}, r"statics must be \[3, 7\]; it is \[3, 8\]"),
        ({"statics": torch.zeros(3, 7).bfloat16()}, r"statics must be float32"),
        ({"weight": torch.zeros(5, 7)}, r"weight must be \[6, 7\]; it is \[5, 7\]"),
        ({"gain": None}, r"given together"),
        ({"m": 4}, r"m must be from 1 to n = 3; it is 4"),
        ({"m": 0}, r"m must be from 1"),
        ({"carry": 9}, r"carry must be 0"),
        ({"h": torch.zeros(4, 17, 6), "carry": 2}, r"sinkhorn takes up to 16 slots; the state has 17"),
        ({"h": torch.zeros(4, 5, 6), "carry": 3}, r"perm takes up to 4"),
    ],
)
def test_what_does_not_fit_is_refused_with_shapes(change, message):
    arguments = {
        "h": torch.zeros(4, 3, 6),
        "statics": torch.zeros(3, 7),
        "scale": torch.zeros(3, 7),
        "weight": torch.zeros(6, 7),
        "gain": torch.ones(6),
        "m": 2,
        "carry": 0,
        **change,
    }
    with pytest.raises(RuntimeError, match=message):
        OPS.ghc_pre(*arguments.values(), 1e-6)


def test_what_does_not_fit_a_write_is_refused_with_shapes():
    h, z, coefficients = torch.zeros(4, 3, 6), torch.zeros(4, 12), torch.zeros(4, 3, 7)
    with pytest.raises(RuntimeError, match=r"output must be \[4, 12\]; it is \[4, 11\]"):
        OPS.ghc_post(h, torch.zeros(4, 11), coefficients, 2, 0)
    with pytest.raises(RuntimeError, match=r"coefficients must be \[4, 3, 7\]; it is \[3, 3, 7\]"):
        OPS.ghc_post(h, z, torch.zeros(3, 3, 7), 2, 0)
    with pytest.raises(RuntimeError, match=r"multiple of the group size 5; it is \[4, 12\]"):
        OPS.group_norm(z, torch.ones(12), 5, 1e-6)


def test_second_derivatives_and_vmap_are_refused_clearly():
    mixer = make_mixer(2, 3)
    h, weight, gradient = inputs(mixer, 5)
    h.requires_grad_()
    (first,) = torch.autograd.grad(by_separate_operators(mixer, h, weight), h, gradient, create_graph=True)
    with pytest.raises(NotImplementedError, match="a second derivative is not supported by the fused operators"):
        first.sum().backward()
    batch = torch.randn(2, 5, 3, 6)
    with pytest.raises(NotImplementedError, match="vmap over it is not supported"):
        torch.vmap(lambda h: OPS.ghc_pre(h, *mixer.operator_parameters(), 2, 0, 1e-6)[0])(batch)


def test_the_environment_can_ask_for_the_composite_path_and_for_less_than_the_best_instructions():
    program = (
        "import torch; from widestream.vwn import GHCMixer, operators;"
        "print(GHCMixer(4, 2, 3).fused(torch.zeros(1, 3, 2)), operators.instructions())"
    )

    def run(**variables):
        environment = {**os.environ, **variables}
        return subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout.strip()

    assert run(WIDESTREAM_OPERATORS="off") == "False"
    assert run(WIDESTREAM_CPU="baseline") == "True baseline"
