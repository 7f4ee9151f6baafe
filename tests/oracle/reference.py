"""What transformers computes in f32: the reference for every engine of ours.

Greedy ids come with the margin of each step, the best logit minus the second. Where a margin is
under what f32 rounding can move, two right implementations may choose differently; from there on
their texts differ, so the reference is asked again with the engine's own ids forced on it.

Results are kept in the user's cache, keyed by the model's bytes, the versions and the prompt:
comparing twice costs one run of the reference.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from crossdock.models.cache import cache_directory, weight_files

# How far apart two right f32 implementations may see two logits. Measured for SmolLM2-135M over
# the ten prompts, f32 against f64: a logit (up to 43) is off by 9e-5 at most. A margin has two
# logits, and there are two implementations: 4 * 9e-5 = 3.6e-4, rounded up. The smallest margin of
# the ten prompts' 640 tokens is 2.2e-3, so all of them have to be equal.
# tests/oracle/test_reference.py measures it again.
MARGIN_ROUNDING_MAX: Final = 5e-4


@dataclass(frozen=True, slots=True)
class Reference:
    """Greedy continuation of a prompt."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]  # End-of-sequence ids do not end it.
    margins: tuple[float, ...]  # Best logit minus second, one a generated token.


@dataclass(frozen=True, slots=True)
class Forced:
    """What the reference would choose at each step of a continuation that is forced on it."""

    best_ids: tuple[int, ...]
    shortfalls: tuple[float, ...]  # Best logit minus the forced token's; 0 where they agree.


class Oracle:
    """transformers on one Hugging Face directory; the model is loaded when first needed."""

    def __init__(self, directory: Path, cache: Path | None = None) -> None:
        self._directory = directory
        self._cache = cache or cache_directory().parent / "oracle"
        self._model: Any = None
        self._fingerprint = ""

    def greedy(self, prompt_ids: Sequence[int], num_tokens: int) -> Reference:
        """The reference's own continuation."""
        file = self._cache / f"{self._key(prompt_ids, num_tokens)}.json"
        if file.is_file():
            kept = json.loads(file.read_text())
            return Reference(*(tuple(kept[name]) for name in ("prompt_ids", "ids", "margins")))
        reference = self._run_greedy(prompt_ids, num_tokens)
        self._cache.mkdir(parents=True, exist_ok=True)
        # Another process may write the same: each writes aside, the last rename wins.
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(reference)))
        aside.replace(file)
        return reference

    def force(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Forced:
        """Teacher forcing: one pass over prompt and continuation."""
        import torch

        everything = torch.tensor([[*prompt_ids, *ids]])
        with torch.no_grad():
            logits = self._loaded()(everything, logits_to_keep=len(ids) + 1).logits[0, :-1]
        best = logits.max(dim=-1)
        chosen = logits.gather(1, torch.tensor(list(ids))[:, None])[:, 0]
        return Forced(tuple(best.indices.tolist()), tuple((best.values - chosen).tolist()))

    def _run_greedy(self, prompt_ids: Sequence[int], num_tokens: int) -> Reference:
        import torch

        prompt = torch.tensor([list(prompt_ids)])
        with torch.no_grad():
            output = self._loaded().generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=num_tokens,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
        top = torch.stack(output.logits)[:, 0].topk(2)
        ids = top.indices[:, 0].tolist()
        assert output.sequences[0, len(prompt_ids) :].tolist() == ids
        margins = (top.values[:, 0] - top.values[:, 1]).tolist()
        return Reference(tuple(prompt_ids), tuple(ids), tuple(margins))

    def _loaded(self) -> Any:
        if self._model is None:
            self._model = load_model(self._directory, "float32")
        return self._model

    def _key(self, prompt_ids: Sequence[int], num_tokens: int) -> str:
        if not self._fingerprint:
            digest = hashlib.blake2b(digest_size=16)
            for path in (self._directory / "config.json", *weight_files(self._directory)):
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "blake2b").digest())
            for package in ("torch", "transformers"):
                digest.update(version(package).encode())
            self._fingerprint = digest.hexdigest()
        request = json.dumps([self._fingerprint, list(prompt_ids), num_tokens])
        return hashlib.blake2b(request.encode(), digest_size=16).hexdigest()


def load_model(directory: Path, dtype: str) -> Any:
    """The model in "float32" or "float64", whatever dtype its file has."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    # The plainest forms, whose order of operations depends on no backend.
    model = AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=getattr(torch, dtype),
        attn_implementation="eager",
        experts_implementation="eager",
    ).eval()
    # Engines are compared with ignore_eos, over a fixed number of tokens.
    model.generation_config.eos_token_id = None
    return model


def assert_same_ids(ours: Sequence[int], reference: Reference, oracle: Oracle) -> int:
    """Holds our greedy ids against the reference's, as many as we have.

    A differing token is accepted only where the reference itself, given our tokens before it,
    ranks ours within MARGIN_ROUNDING_MAX of its best. Returns the number accepted in that way.
    """
    expected = reference.ids[: len(ours)]
    assert len(expected) == len(ours), f"{len(ours)} ids, the reference has {len(expected)}"
    if tuple(ours) == expected:
        return 0
    forced = oracle.force(reference.prompt_ids, ours)
    num_accepted = 0
    steps = zip(ours, forced.best_ids, forced.shortfalls, strict=True)
    for index, (our_id, best_id, shortfall) in enumerate(steps):
        if our_id != best_id:
            assert shortfall < MARGIN_ROUNDING_MAX, (
                f"token {index} after a prompt of {len(reference.prompt_ids)}: ours is {our_id}, "
                f"the reference's {best_id}, ahead by {shortfall:.3g}"
            )
            num_accepted += 1
    assert num_accepted > 0, (
        f"ids differ from the reference's greedy ones but not under teacher forcing: {ours}"
    )
    return num_accepted
