"""Writes the tiny MLA model as a Hugging Face directory, and reads it back to judge it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor

from tools.tiny_mla_model import MlaSpec, TinyMla, checkpoint_tensors

BOS, EOS, PAD, USER, ASSISTANT = "<|bos|>", "<|eos|>", "<|pad|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS: Final = (BOS, EOS, PAD, USER, ASSISTANT)  # In the order of their ids, from 0.
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Perplexity is over windows of this many tokens, each of them BOS and what follows in the text.
WINDOW_TOKENS: Final = 512


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE vocabulary; BOS is put before each text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 0)]
    )
    return tokenizer


def write_checkpoint(directory: Path, model: TinyMla, tokenizer: Tokenizer) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in checkpoint_tensors(model).items()}
    (directory / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    tokenizer.save(str(directory / "tokenizer.json"))
    _write_json(directory / "config.json", _config(model.spec))
    _write_json(
        directory / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2},
    )
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.spec.max_position_embeddings,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def _config(spec: MlaSpec) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        **asdict(spec),
        "num_key_value_heads": spec.num_attention_heads,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "moe_layer_freq": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 0,
        "rope_interleave": True,
        "rope_scaling": None,
        "scoring_func": "sigmoid",
        "tie_word_embeddings": False,
        "topk_method": "noaux_tc",
        "use_cache": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def windows(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """The text's tokens, cut; each window starts with BOS, and the last one may be short."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    step = WINDOW_TOKENS - 1
    return [[0, *ids[start : start + step]] for start in range(0, len(ids), step)]


class Oracle:
    """The checkpoint as transformers computes it, in f32 from the bf16 weights."""

    def __init__(self, directory: Path) -> None:
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))

    def logits(self, ids: list[int]) -> Tensor:
        """[token, vocabulary]."""
        with torch.no_grad():
            return self.model(torch.tensor([ids])).logits[0]

    def perplexity(self, text: str) -> tuple[float, float, int]:
        """(perplexity per token, bits per byte, number of tokens)."""
        nats, tokens = 0.0, 0
        for window in windows(self.tokenizer, text):
            scores = self.logits(window)[:-1].double().log_softmax(-1)
            wanted = torch.tensor(window[1:])[:, None]
            nats -= float(scores.gather(1, wanted).sum())
            tokens += len(wanted)
        return math.exp(nats / tokens), nats / math.log(2) / len(text.encode()), tokens

    def sample(self, prompt: str, num_tokens: int, seed: int, temperature: float = 0.7) -> str:
        """Continues the prompt, drawing from the 40 likeliest tokens."""
        torch.manual_seed(seed)
        ids = torch.tensor([self.tokenizer.encode(prompt).ids])
        out = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=temperature > 0,
            temperature=temperature if temperature > 0 else None,
            top_k=40 if temperature > 0 else None,
        )
        return self.tokenizer.decode(out[0].tolist(), skip_special_tokens=False)
