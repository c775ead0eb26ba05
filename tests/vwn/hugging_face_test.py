"""The library's models with virtual width: equal at step 0, saved and loaded, generating."""

import pytest
import torch

from tests.vwn.widen_test import train
from widestream.vwn import widen

transformers = pytest.importorskip("transformers")
KINDS = ["Llama", "Mistral", "Qwen2", "Qwen3"]


def narrow(kind, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        max_position_embeddings=128,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **options,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def logits_of(model, tokens, **options):
    return model(input_ids=tokens, **options).logits


TOKENS = torch.randint(3, 61, (2, 12), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options", [{"r": 2}, {"r": 1.5}, {"r": 4, "m": 2, "embedding": "table"}, {"r": 2, "carry": "identity"}]
)
def test_logits_are_kept_and_training_goes_on(kind, options):
    model = narrow(kind)
    wide = widen(model, **options)
    mask = torch.ones_like(TOKENS)
    mask[0, :4] = 0
    with torch.no_grad():
        for keywords in ({}, {"attention_mask": mask}):
            expected, found = logits_of(model, TOKENS, **keywords), logits_of(wide, TOKENS, **keywords)
            torch.testing.assert_close(found[mask > 0], expected[mask > 0], atol=1e-5, rtol=1e-5)
    losses = train(wide, logits_of, steps=5)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tie", [False, True])
def test_saved_and_loaded_it_gives_the_same_logits(kind, tie, tmp_path):
    wide = widen(narrow(kind, tie_word_embeddings=tie), 2)
    train(wide, logits_of)
    wide.save_pretrained(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir() if path.name.startswith("model")] == [".safetensors"]
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(loaded) is type(wide) and loaded.config.vwn_n == 8
    if tie:
        assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(logits_of(loaded, TOKENS), logits_of(wide.eval(), TOKENS), atol=1e-6, rtol=1e-6)


def test_ghc_stays_float32_in_a_bfloat16_model(tmp_path):
    widen(narrow("Llama"), 2).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    kinds = {name: p.dtype for name, p in loaded.named_parameters()}
    assert all((dtype == torch.float32) == (".mixer." in name) for name, dtype in kinds.items()), kinds
    assert logits_of(loaded, TOKENS).isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_generate_with_the_cache_equals_without_it_and_the_narrow_model(kind):
    model = narrow(kind)
    wide = widen(model, 2)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(TOKENS)}
    expected = model.generate(TOKENS, **options)
    assert wide.generate(TOKENS, **options).tolist() == expected.tolist()
    assert wide.generate(TOKENS, use_cache=False, **options).tolist() == expected.tolist()


def test_gradient_checkpointing_gives_the_same_gradients():
    wide = widen(narrow("Llama"), 2).train()
    found = []
    for enable in (False, True):
        if enable:
            wide.activation_checkpointing_enable()
        wide.zero_grad()
        wide(input_ids=TOKENS, labels=TOKENS).loss.backward()
        found.append({name: p.grad.clone() for name, p in wide.named_parameters()})
    torch.testing.assert_close(found[0], found[1])


def test_what_cannot_be_wide_is_refused():
    wide = widen(narrow("Llama"), 2)
    with pytest.raises(ValueError, match="rD wide"):
        wide(input_ids=TOKENS, output_hidden_states=True)
    with pytest.raises(NotImplementedError, match="before widening"):
        wide.resize_token_embeddings(70)
    with pytest.raises(ValueError, match="not supported"):
        widen(wide, 2)
    with pytest.raises(ValueError, match="vwn_embedding 'linear'"):
        widen(narrow("Llama", tie_word_embeddings=True), 2, embedding="table")
