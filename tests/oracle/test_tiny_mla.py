"""The model that tools/train_tiny_mla.py trains is what transformers makes of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tools.tiny_mla_checkpoint import Oracle, train_tokenizer, windows, write_checkpoint
from tools.tiny_mla_model import MlaSpec, TinyMla, balance

pytestmark = pytest.mark.oracle

TEXT = "In the beginning was the word, and the word was short. " * 8
SPEC = MlaSpec(vocab_size=300, hidden_size=64, num_hidden_layers=3, num_attention_heads=3)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> TinyMla:
    """Random weights, uneven correction biases; products and checkpoint in f32."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.float)
    torch.manual_seed(1)
    model = TinyMla(SPEC)
    for gate in model.gates():
        gate.weight.data.mul_(20)
        gate.e_score_correction_bias.normal_(std=0.2)
    return model


def test_logits_equal_those_of_transformers(model: TinyMla, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, model, train_tokenizer([TEXT], SPEC.vocab_size))
    oracle = Oracle(tmp_path)
    (ids,) = windows(oracle.tokenizer, TEXT)
    with torch.no_grad():
        ours = model.lm_head(model.hidden(torch.tensor([ids]))[0])
    theirs = oracle.logits(ids)
    assert float((ours - theirs).abs().max()) < 1e-4 * float(theirs.abs().max())
    # The loss is that of transformers too, and so is the perplexity.
    loss = float(model(torch.tensor([ids])).detach())
    perplexity, bits, tokens = oracle.perplexity(TEXT)
    assert tokens == len(ids) - 1
    assert perplexity == pytest.approx(torch.tensor(loss).exp().item(), rel=1e-4)
    assert bits == pytest.approx(loss * tokens / len(TEXT) / 0.6931472, rel=1e-4)


def test_the_bias_moves_towards_even_loads(model: TinyMla) -> None:
    gates = model.gates()
    before = [gate.e_score_correction_bias.clone() for gate in gates]
    ids = torch.randint(5, SPEC.vocab_size, (2, 40))
    model(ids)
    loads = [gate.load.clone() for gate in gates]
    assert all(float(load.sum()) == 2 * 39 * SPEC.num_experts_per_tok for load in loads)
    worst = balance(gates, 0.01)
    assert worst > 1.0
    for gate, old, load in zip(gates, before, loads, strict=True):
        moved = gate.e_score_correction_bias - old
        assert torch.equal(torch.sign(moved), torch.sign(load.mean() - load))
        assert not gate.load.any()
