"""GHC against the paper's formulas: check vectors, orientation, initial values, gradients, precision."""

import pytest
import torch
from torch import nn

from widestream.vwn import GHC, GHCMixer, initial_coefficients
from widestream.vwn.carries import carry_matrix

WIDTHS = [(1, 4), (2, 3), (3, 5), (4, 8), (1, 1), (4, 4)]


class Identity(nn.Module):
    def forward(self, x):
        return x


def random_mixer(m, n, slot_width, *, carry="ghc", dynamic=True, seed=0):
    """A float64 mixer with every parameter random, so that no symmetry hides a transposition."""
    torch.manual_seed(seed)
    mixer = GHCMixer(m * slot_width, m, n, carry=carry, dynamic=dynamic).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return mixer


def formula(mixer, h_Tnd, z_of_x):
    """The index form of the reference, in plain loops: (x [T, D], h_new [T, n, d])."""
    tokens, n, d = h_Tnd.shape
    m = mixer.m
    xs, news = [], []
    for t in range(tokens):
        h = h_Tnd[t]
        normed = h / torch.sqrt((h * h).mean(1, keepdim=True) + mixer.eps) * mixer.gain
        c = mixer.scale * torch.tanh(normed @ mixer.weight / d**0.5) + mixer.static
        read, write = c[:, :m], c[:, -m:]
        carry = torch.eye(n, dtype=h.dtype) if mixer.carry == "identity" else c[:, m : m + n]
        x = [sum(read[i, k] * h[i] for i in range(n)) for k in range(m)]
        z = z_of_x(torch.cat(x)).view(m, d)
        new = [sum(write[j, k] * z[k] for k in range(m)) + sum(carry[i, j] * h[i] for i in range(n)) for j in range(n)]
        xs.append(torch.cat(x))
        news.append(torch.stack(new))
    return torch.stack(xs), torch.stack(news)


def static_example():
    mixer = GHCMixer(4, 2, 3, dynamic=False)
    read = torch.tensor([[1.0, 0], [0, 1], [2, -1]])
    carry = torch.tensor([[1.0, 2, 0], [0, 1, 0], [3, 0, 1]])
    write_by_segment = torch.tensor([[1.0, 0, 1], [0, 1, 2]])
    with torch.no_grad():
        mixer.static.copy_(torch.cat((read, carry, write_by_segment.T), dim=1))
    return mixer, torch.tensor([[[1.0, 2], [3, 4], [5, 6]]])


def test_static_check_vector_of_the_paper():
    mixer, h = static_example()
    coefficients = mixer.coefficients(h)
    x = mixer.read(h, coefficients)
    assert x.tolist() == [[11, 14, -2, -2]]
    assert mixer.write(h, x, coefficients).tolist() == [[[27, 34], [3, 6], [12, 16]]]


def test_a_transposed_carry_gives_another_result():
    mixer, h = static_example()
    with torch.no_grad():
        mixer.static[:, 2:5] = mixer.static[:, 2:5].T.clone()
    coefficients = mixer.coefficients(h)
    x = mixer.read(h, coefficients)
    assert mixer.write(h, x, coefficients).tolist() == [[[18, 24], [1, 2], [15, 22]]]


def test_dynamic_check_vector_of_the_paper():
    mixer = GHCMixer(4, 1, 1, eps=0.0).double()
    with torch.no_grad():
        mixer.weight.fill_(0.5)
        mixer.static.fill_(0.25)
    coefficients = mixer.coefficients(torch.full((1, 1, 4), 2.0, dtype=torch.float64))
    torch.testing.assert_close(coefficients, torch.full((1, 1, 3), 1.011594, dtype=torch.float64), atol=1e-6, rtol=0)
    exact = 0.25 + torch.tanh(torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(coefficients[0, 0, 0], exact, atol=1e-15, rtol=0)


def test_initial_values_of_two_segments_and_three_slots():
    expected = [[1, 0, 1, 0, 0, 1, 0], [0, 1, 0, 1, 0, 0, 1], [0, 0, 0, 0, 1, 1, 0]]
    assert initial_coefficients(2, 3).tolist() == expected


@pytest.mark.parametrize(("m", "n"), WIDTHS)
@pytest.mark.parametrize("carry", ["ghc", "identity"])
def test_mixer_equals_the_index_form(m, n, carry):
    mixer = random_mixer(m, n, 6, carry=carry)
    h = torch.randn(5, n, 6, dtype=torch.float64)
    coefficients = mixer.coefficients(h)
    x = mixer.read(h, coefficients)
    new = mixer.write(h, torch.sin(x), coefficients)
    x_expected, new_expected = formula(mixer, h, torch.sin)
    torch.testing.assert_close(x, x_expected, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(new, new_expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("m", "n"), WIDTHS)
def test_backward_equals_the_hand_derived_formula(m, n):
    d, tokens = 5, 7
    mixer = random_mixer(m, n, d)
    h = torch.randn(tokens, n, d, dtype=torch.float64, requires_grad=True)
    coefficients = mixer.coefficients(h)
    x = mixer.read(h, coefficients)
    z = torch.sin(x)
    new = mixer.write(h, z, coefficients)
    gradient = torch.randn_like(new)
    new.backward(gradient)

    with torch.no_grad():
        H, G, Z = h.detach(), gradient, z.detach().view(tokens, m, d)
        rho = torch.rsqrt((H * H).mean(-1, keepdim=True) + mixer.eps)
        tanh = torch.tanh((H * rho * mixer.gain) @ mixer.weight / d**0.5)
        C = mixer.scale * tanh + mixer.static
        read, carry, write = C[..., :m], C[..., m : m + n], C[..., m + n :]
        dz = torch.einsum("tjk,tjd->tkd", write, G)
        dx = dz * torch.cos(x.detach()).view(tokens, m, d)
        dC = torch.cat(
            (
                torch.einsum("tid,tkd->tik", H, dx),
                torch.einsum("tid,tjd->tij", H, G),
                torch.einsum("tjd,tkd->tjk", G, Z),
            ),
            dim=-1,
        )
        du = dC * mixer.scale * (1 - tanh**2) / d**0.5
        back = du @ mixer.weight.T
        q = back * mixer.gain
        dH = (
            torch.einsum("tij,tjd->tid", carry, G)
            + torch.einsum("tik,tkd->tid", read, dx)
            + rho * q
            - H * rho**3 * (q * H).mean(-1, keepdim=True)
        )
        expected = {
            "scale": (dC * tanh).sum(0),
            "static": dC.sum(0),
            "weight": torch.einsum("tid,tic->dc", H * rho * mixer.gain, du),
            "gain": (back * H * rho).sum((0, 1)),
        }
    torch.testing.assert_close(h.grad, dH, atol=1e-11, rtol=1e-11)
    for name, value in expected.items():
        torch.testing.assert_close(getattr(mixer, name).grad, value, atol=1e-11, rtol=1e-11, msg=name)


def test_any_leading_sizes_and_any_block():
    torch.manual_seed(0)
    ghc = GHC(nn.Linear(6, 6), d_model=6, m=2, n=3)
    h = torch.randn(2, 4, 3, 3)
    out = ghc(h)
    assert out.shape == h.shape
    torch.testing.assert_close(ghc(h.view(8, 3, 3)), out.view(8, 3, 3))


def test_no_tokens_give_no_tokens():
    assert GHC(Identity(), d_model=6, m=2, n=3)(torch.zeros(0, 3, 3)).shape == (0, 3, 3)


def test_wrong_shapes_are_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\[\.\.\., 3, 3\]; got \[2, 3, 4\]"):
        GHC(Identity(), d_model=6, m=2, n=3)(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match=r"must return \[2, 6\]; it returned \[2, 5\]"):
        GHC(nn.Linear(6, 5), d_model=6, m=2, n=3)(torch.zeros(2, 3, 3))


def test_one_token_of_a_dynamic_mixer_is_not_taken_for_static():
    mixer = random_mixer(2, 3, 4)
    h = torch.randn(3, 3, 4, dtype=torch.float64)
    alone = [mixer.read(h[t : t + 1], mixer.coefficients(h[t : t + 1])) for t in range(3)]
    torch.testing.assert_close(torch.cat(alone), mixer.read(h, mixer.coefficients(h)))


def test_coefficients_stay_float32_under_autocast_and_after_a_cast():
    torch.manual_seed(0)
    ghc = GHC(nn.Linear(8, 8, bias=False), d_model=8, m=2, n=3)
    with torch.no_grad():
        ghc.mixer.static.add_(torch.randn(3, 7) * 1e-3)
        ghc.mixer.weight.normal_()
    before = {name: p.detach().clone() for name, p in ghc.mixer.named_parameters()}
    h = torch.randn(5, 3, 4)
    exact = ghc.mixer.coefficients(h)
    with torch.autocast("cpu", torch.bfloat16):
        coefficients = ghc.mixer.coefficients(h)
        assert coefficients.dtype == torch.float32
        assert torch.equal(coefficients, exact)
        assert torch.equal(ghc.mixer.read(h, coefficients), ghc.mixer.read(h, exact))
        assert ghc.block(h.flatten(1)[:, :8]).dtype == torch.bfloat16  # autocast is on around it
        assert ghc(h).dtype == torch.float32
    ghc.to(torch.bfloat16)
    assert ghc.block.weight.dtype == torch.bfloat16
    for name, parameter in ghc.mixer.named_parameters():
        assert torch.equal(parameter, before[name]), name
    low = h.bfloat16()
    assert ghc.mixer.coefficients(low).dtype == torch.float32
    assert ghc(low).dtype == torch.bfloat16


def test_carry_columns_and_their_limits():
    assert GHCMixer(8, 2, 3, carry="identity").static.shape == (3, 4)
    assert GHCMixer(8, 2, 3, carry="sinkhorn").static.shape == (3, 7)
    assert GHCMixer(8, 2, 3, carry="perm").static.shape == (3, 4 + 6)
    with pytest.raises(ValueError, match="n = 17 slots"):
        GHCMixer(8, 1, 17, carry="sinkhorn")
    with pytest.raises(ValueError, match="perm up to 4"):
        GHCMixer(8, 1, 5, carry="perm")


@pytest.mark.parametrize("carry", ["sinkhorn", "perm"])
@pytest.mark.parametrize(("m", "n"), [(1, 4), (2, 3), (1, 1)])
def test_constrained_carries_are_doubly_stochastic_and_start_near_the_identity(carry, m, n):
    mixer = random_mixer(m, n, 6, carry=carry)
    columns = mixer.coefficients(torch.randn(9, n, 6, dtype=torch.float64))[..., m:-m]
    matrix = carry_matrix(columns, carry)
    assert matrix.shape == (9, n, n) and bool((matrix >= 0).all())
    torch.testing.assert_close(matrix.sum(1), torch.ones(9, n).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(matrix.sum(2), torch.ones(9, n).double(), atol=1e-2, rtol=0)
    start = GHCMixer(m * 6, m, n, carry=carry).coefficients(torch.randn(1, n, 6))[..., m:-m]
    torch.testing.assert_close(carry_matrix(start, carry), torch.eye(n)[None], atol=2e-3, rtol=0)


@pytest.mark.parametrize("carry", ["sinkhorn", "perm"])
def test_constrained_carries_mix_from_row_to_column(carry):
    mixer = random_mixer(2, 3, 6, carry=carry)
    h = torch.randn(4, 3, 6, dtype=torch.float64, requires_grad=True)
    coefficients = mixer.coefficients(h)
    matrix = carry_matrix(coefficients[..., 2:-2], carry)
    assert not torch.allclose(matrix, matrix.transpose(1, 2), atol=1e-3)
    found = mixer.write(h, torch.zeros(4, 12, dtype=torch.float64), coefficients)
    expected = torch.stack([sum(matrix[:, i, j, None] * h[:, i] for i in range(3)) for j in range(3)], dim=1)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(
        lambda h: mixer.write(h, mixer.read(h, mixer.coefficients(h)), mixer.coefficients(h)), h
    )
