"""VWNForCausalLM: the same numbers as VWNTransformer, saved and loaded, generating with the library's cache."""

import pytest
import torch
from torch.nn import functional

from widestream.vwn import VWNConfig, VWNTransformer

transformers = pytest.importorskip("transformers")
SIZES = {"vocabulary_size": 61, "d_model": 24, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_width": 40}
TOKENS = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(3))
OPTIONS = [{}, {"mtp_depth": 2}, {"experts": 4}, {"plain": True}, {"m": 2, "n": 3, "dynamic": False}]


def wrapped(**options):
    from widestream.vwn.hugging_face_native import VWNForCausalLM

    torch.manual_seed(0)
    model = VWNTransformer(VWNConfig(**SIZES, **options)).eval()
    return model, VWNForCausalLM.from_transformer(model)


@pytest.mark.parametrize("options", OPTIONS)
def test_logits_equal_with_and_without_the_cache(options):
    model, ours = wrapped(**options)
    with torch.no_grad():
        expected = model.logits(model(TOKENS).hidden[0]).view(2, 12, 61)
        for use_cache in (False, True):
            torch.testing.assert_close(ours(TOKENS, use_cache=use_cache).logits, expected, atol=1e-5, rtol=1e-5)
        assert ours(TOKENS, logits_to_keep=1).logits.shape == (2, 1, 61)


@pytest.mark.parametrize("use_cache", [False, True])
def test_padding_on_the_left_changes_nothing(use_cache):
    _, ours = wrapped()
    padded = torch.cat((torch.zeros(2, 3, dtype=torch.int64), TOKENS), dim=1)
    mask = (torch.arange(15) >= 3).long().expand(2, 15)
    with torch.no_grad():
        found = ours(padded, attention_mask=mask, use_cache=use_cache).logits[:, 3:]
        torch.testing.assert_close(found, ours(TOKENS, use_cache=False).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_generate_equals_token_by_token(options):
    model, ours = wrapped(**options)
    mask = torch.ones_like(TOKENS)
    arguments = {"max_new_tokens": 8, "do_sample": False, "attention_mask": mask}
    tokens = TOKENS
    for _ in range(8):
        best = model.logits(model(tokens).hidden[0]).view(*tokens.shape, -1)[:, -1].argmax(-1)
        tokens = torch.cat((tokens, best[:, None]), dim=1)
    assert ours.generate(TOKENS, **arguments).tolist() == tokens.tolist()
    assert ours.generate(TOKENS, use_cache=False, **arguments).tolist() == tokens.tolist()


@pytest.mark.parametrize("options", [*OPTIONS, {"embedding": "linear", "tie_embeddings": True}])
def test_saved_and_loaded_it_gives_the_same_logits(options, tmp_path):
    _, ours = wrapped(**options)
    ours.save_pretrained(tmp_path)
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert loaded.config.vwn_config() == ours.config.vwn_config()
    tied = loaded.transformer.head.weight is loaded.transformer.embedding.table.weight
    assert tied == options.get("tie_embeddings", False)
    with torch.no_grad():
        torch.testing.assert_close(loaded(TOKENS).logits, ours(TOKENS).logits, atol=1e-6, rtol=1e-6)


def test_the_loss_is_that_of_its_parts():
    model, ours = wrapped(mtp_depth=2, experts=4)
    labels = TOKENS.clone()
    labels[0, 5] = -100
    out = model(TOKENS)
    parts = []
    for depth, hidden in enumerate(out.hidden, start=1):
        logits = model.logits(hidden).view(2, 12, 61)[:, :-depth]
        parts.append(functional.cross_entropy(logits.flatten(0, 1), labels[:, depth:].flatten(), ignore_index=-100))
    expected = parts[0] + 0.15 * (parts[1] + parts[2]) + 0.01 * out.router_loss
    torch.testing.assert_close(ours(TOKENS, labels=labels).loss, expected)
    with pytest.raises(ValueError, match="labels and a cache"):
        ours(TOKENS, labels=labels, use_cache=True)
