"""Monitors: the figures are those of the formulas, and what grows raises an alarm."""

import json

import pytest
import torch

from widestream.vwn import Monitor, VWNConfig, VWNTransformer

SIZES = {"vocabulary_size": 31, "d_model": 24, "layers": 2, "heads": 3, "ffn_width": 40}
TOKENS = torch.arange(40).view(2, 20) % 31


def watched(model, **options):
    with Monitor(model, **options) as monitor, torch.no_grad():
        model(TOKENS)
    return monitor.report()


def model(**options):
    torch.manual_seed(0)
    return VWNTransformer(VWNConfig(**SIZES, **{"m": 2, "n": 4, **options}))


@pytest.mark.parametrize("options", [{}, {"carry": "identity"}, {"dynamic": False}, {"carry": "sinkhorn"}])
def test_a_new_model_is_a_residual_network(options):
    report = watched(model(**options))
    assert [f.name for f in report.sub_layers] == [
        f"layers.{i}.{part}" for i in range(2) for part in ("attention", "feed_forward")
    ]
    for figures in report.sub_layers:
        assert figures.composite_gain == pytest.approx(1, abs=0.01)
        assert (figures.virtual_read_share, figures.saturation) == (0, 0)
        assert figures.scale_norm == (0 if options.get("dynamic") is False else 1)
        assert len(figures.slot_rms) == 4
    assert report.alarms == ()


def test_figures_of_static_coefficients():
    net = model(dynamic=False)
    with torch.no_grad():
        for layer in net.layers:
            for ghc in (layer.attention, layer.feed_forward):
                ghc.mixer.static[:, 2:6] = torch.tensor([[1.0, 2, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
                ghc.mixer.static[3, 0] = -1.0
    report = watched(net)
    # The k-th power of [[1, 2], [0, 1]] is [[1, 2k], [0, 1]].
    assert [f.composite_gain for f in report.sub_layers] == pytest.approx([3, 5, 7, 9])
    assert [f.virtual_read_share for f in report.sub_layers] == pytest.approx([1 / 3] * 4)
    rms = net.embedding(TOKENS).view(40, 4, 12).square().mean((0, 2)).sqrt()
    assert report.sub_layers[0].slot_rms == pytest.approx(rms.tolist(), rel=1e-5)


def test_growth_and_saturation_raise_alarms_that_name_the_layer():
    net = model()
    with torch.no_grad():
        net.layers[1].attention.mixer.static[:, 2:6] *= 50
        net.layers[0].feed_forward.mixer.weight.fill_(100.0)
        net.layers[0].feed_forward.mixer.scale.fill_(0.0)
    alarms = watched(net, gain_alarm=10, saturation_alarm=0.8).alarms
    assert [alarm.split(":")[0] for alarm in alarms] == [
        "layers.0.feed_forward",
        "layers.1.attention",
        "layers.1.feed_forward",
    ]
    assert "multiply a signal by up to 50" in alarms[1] and "|tanh|" in alarms[0]


def test_the_report_is_written_and_hooks_go(tmp_path):
    net = model(mtp_depth=1)
    report = watched(net)
    assert len(report.sub_layers) == 6
    found = json.loads(report.write(tmp_path).read_text())
    assert found["sub_layers"][0]["name"] == "layers.0.attention" and found["alarms"] == []
    assert not any(module._forward_pre_hooks for module in net.modules())


def test_misuse_is_refused():
    with pytest.raises(ValueError, match="no GHC"):
        Monitor(model(plain=True, m=1, n=1))
    with pytest.raises(RuntimeError, match="no forward pass"):
        Monitor(model()).report()
    with pytest.raises(ValueError, match="at least 1"):
        Monitor(model(), sampled_tokens=0)
