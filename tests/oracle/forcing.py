"""Teacher forcing: the logits of every position of a fixed text, by the engine's executor and by
transformers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from crossdock._native import Executor
from tests.oracle.reference import load_model

BLOCK_TOKENS: Final = 32
# Blocks lie in no order, and some belong to nobody.
BLOCK_TABLE: Final = (6, 2, 7, 0)
NUM_BLOCKS: Final = 9
PROMPT_TOKENS: Final = 70  # two whole blocks and a part
DECODE_STEPS: Final = 32

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Truth:
    """What transformers says of a text."""

    logits: Rows  # [position][token]
    # By how much the choice of experts could move and stay: the least over all layers, a position.
    # Scores are those that choose, of one or less each.
    gate_margins: npt.NDArray[np.float64]


def text_of(vocab_size: int, num_tokens: int = PROMPT_TOKENS + DECODE_STEPS) -> list[int]:
    """Random ids, without the special ones."""
    ids: list[int] = np.random.default_rng(7).integers(3, vocab_size, num_tokens).tolist()
    return ids


def forced_rows(executor: Executor, text: Sequence[int], chunk: int) -> Rows:
    """Computes the prompt in chunks, then a token a step; the logits of each step's last token."""
    executor.slab[:] = 0xFF  # NaN in every format: what was never written must not be read.
    cuts = [*range(0, PROMPT_TOKENS, chunk), *range(PROMPT_TOKENS, len(text) + 1)]
    rows = [
        executor.run([(text[begin:end], begin, BLOCK_TABLE, True)], first_generated=PROMPT_TOKENS)
        for begin, end in itertools.pairwise(cuts)
    ]
    return np.concatenate(rows)


def true_logits(directory: Path, text: Sequence[int], cache: Any = None) -> Truth:
    """One pass of transformers in f32. `cache` takes part in it: see `RoundingCache`."""
    import torch

    torch.set_num_threads(1)
    model = load_model(directory, "float32")
    margins = np.full(len(text), np.inf)

    def on_gate(gate: Any, _: Any, output: Any) -> None:
        np.minimum(margins, gate_margins(gate, output[0].double()), out=margins)

    for name, module in model.named_modules():
        if name.endswith("mlp.gate"):
            module.register_forward_hook(on_gate)
    with torch.no_grad():
        logits = model(torch.tensor([list(text)]), cache=cache, use_cache=cache is not None).logits
    return Truth(logits[0].numpy(), margins)


def gate_margins(gate: Any, logits: Any) -> Any:
    """How far the last chosen expert or group is ahead of the next one, of each row of logits."""
    import torch

    bias = getattr(gate, "e_score_correction_bias", None)
    scores = logits.softmax(-1) if bias is None else logits.sigmoid() + bias.double()
    margins = torch.full(logits.shape[:1], torch.inf, dtype=torch.float64)
    num_groups = getattr(gate, "num_group", 1) or 1
    if num_groups > 1 and getattr(gate, "topk_method", "") != "greedy":
        grouped = scores.unflatten(-1, (num_groups, -1))
        best = grouped.topk(1 if bias is None else 2).values.sum(-1)
        ranked = best.sort(descending=True)
        edge = ranked.values[:, gate.topk_group - 1 : gate.topk_group + 1]
        margins = edge[:, 0] - edge[:, 1]
        out = ranked.indices[:, gate.topk_group :, None].expand(-1, -1, grouped.shape[-1])
        scores = grouped.scatter(1, out, -torch.inf).flatten(1)
    ranked_scores = scores.sort(descending=True).values
    edge = ranked_scores[:, gate.top_k - 1 : gate.top_k + 1]
    return torch.minimum(margins, edge[:, 0] - edge[:, 1]).numpy()


def write_dequantised(fp8: Path, directory: Path) -> Path:
    """The same model in f32, by torch's own reading of e4m3, for want of FP8 on this machine."""
    import torch
    from safetensors.torch import load_file, save_file

    tensors = load_file(fp8 / "model.safetensors")
    scales = {name: tensors.pop(name) for name in list(tensors) if name.endswith("_scale_inv")}
    for name, tensor in tensors.items():
        plain = tensor.to(torch.float32)
        if name + "_scale_inv" in scales:
            spread = scales[name + "_scale_inv"]
            for axis, size in enumerate(tensor.shape):
                spread = spread.repeat_interleave(128, axis).narrow(axis, 0, size)
            plain = plain * spread
        tensors[name] = plain
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((fp8 / "config.json").read_text())
    del config["quantization_config"]
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def zero_tensors(file: Path, name_end: str) -> int:
    """Zeroes the tensors whose names end so, in place; returns how many."""
    with file.open("r+b") as weights:
        header_bytes = int.from_bytes(weights.read(8), "little")
        header = json.loads(weights.read(header_bytes))
        found = [entry["data_offsets"] for name, entry in header.items() if name.endswith(name_end)]
        for begin, end in found:
            weights.seek(8 + header_bytes + begin)
            weights.write(bytes(end - begin))
    return len(found)
