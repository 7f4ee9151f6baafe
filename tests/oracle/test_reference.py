"""The reference itself: the golden ids, how much its rounding is, and that the alarm rings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from crossdock import models
from crossdock.tokenization import Tokenizer
from tests.oracle.prompts import GOLDEN_IDS, GOLDEN_PROMPT, LONG_PROMPT_TOKENS, build_prompts
from tests.oracle.reference import (
    MARGIN_ROUNDING_MAX,
    Forced,
    Oracle,
    Reference,
    assert_same_ids,
    load_model,
)
from tests.tiny_models.directory import TinyModel, write_tiny_model

pytestmark = pytest.mark.oracle


@pytest.fixture
def tiny_oracle(tiny_model: Path, tmp_path: Path) -> Oracle:
    return Oracle(tiny_model, cache=tmp_path)


@pytest.mark.model
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_default_model_gives_the_golden_ids(dtype: models.Dtype, tmp_path: Path) -> None:
    directory = models.fetch(dtype=dtype)
    prompt = Tokenizer.load(directory).encode(GOLDEN_PROMPT)
    assert prompt == [504, 3575, 282, 4649, 314]
    reference = Oracle(directory, cache=tmp_path).greedy(prompt, len(GOLDEN_IDS))
    assert reference.ids == GOLDEN_IDS


@pytest.mark.model
def test_the_prompts_have_the_lengths_of_their_names(default_model: Path) -> None:
    prompts = build_prompts(Tokenizer.load(default_model))
    lengths = {name: len(ids) for name, ids in prompts.items()}
    assert len(lengths) == 10
    assert lengths["one_token"] == 1
    for length in (31, 32, 33, 64):
        assert lengths[f"tokens_{length}"] == length
    assert lengths["over_2048"] == LONG_PROMPT_TOKENS > 2048


@pytest.mark.model
def test_rounding_is_within_the_bound(default_model: Path) -> None:
    import torch

    prompts = build_prompts(Tokenizer.load(default_model))
    single, double = load_model(default_model, "float32"), load_model(default_model, "float64")
    for name in ("golden", "tokens_64", "code"):
        ids = torch.tensor([prompts[name]])
        with torch.no_grad():
            difference = single(ids).logits.double() - double(ids).logits
        # A margin has two logits, and two implementations are off.
        assert 4 * difference.abs().max().item() < MARGIN_ROUNDING_MAX, name


def test_forcing_its_own_ids_changes_nothing(tiny_oracle: Oracle) -> None:
    reference = tiny_oracle.greedy([5, 6, 7], 64)
    forced = tiny_oracle.force(reference.prompt_ids, reference.ids)
    assert forced.best_ids == reference.ids
    assert set(forced.shortfalls) == {0.0}
    assert assert_same_ids(reference.ids, reference, tiny_oracle) == 0
    assert assert_same_ids(reference.ids[:9], reference, tiny_oracle) == 0


def test_another_token_rings_the_alarm(tiny_oracle: Oracle) -> None:
    reference = tiny_oracle.greedy([5, 6, 7], 32)
    for index in (0, 17, 31):
        wrong = list(reference.ids)
        wrong[index] = (wrong[index] + 1) % 512
        with pytest.raises(AssertionError, match=f"token {index} "):
            assert_same_ids(wrong, reference, tiny_oracle)


def test_more_ids_than_the_reference_has_ring_the_alarm(tiny_oracle: Oracle) -> None:
    reference = tiny_oracle.greedy([5, 6, 7], 4)
    with pytest.raises(AssertionError, match="5 ids"):
        assert_same_ids([*reference.ids, 0], reference, tiny_oracle)


class FixedOracle(Oracle):
    """Says what it is told."""

    def __init__(self, forced: Forced) -> None:
        self._forced = forced

    def force(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Forced:
        del prompt_ids, ids
        return self._forced


def test_a_near_tie_is_accepted_and_counted_and_a_clear_choice_is_not() -> None:
    reference = Reference(prompt_ids=(1,), ids=(7, 8, 9), margins=(1.0, 1e-5, 1.0))
    ours = (7, 3, 4)  # The second token ties; then the text goes another way.
    tie = Forced(best_ids=(7, 8, 4), shortfalls=(0.0, 1e-5, 0.0))
    assert assert_same_ids(ours, reference, FixedOracle(tie)) == 1
    clear = Forced(best_ids=(7, 8, 4), shortfalls=(0.0, 2 * MARGIN_ROUNDING_MAX, 0.0))
    with pytest.raises(AssertionError, match="token 1 "):
        assert_same_ids(ours, reference, FixedOracle(clear))
    later = Forced(best_ids=(7, 8, 5), shortfalls=(0.0, 1e-5, 0.1))
    with pytest.raises(AssertionError, match="token 2 "):
        assert_same_ids(ours, reference, FixedOracle(later))


def test_results_are_kept_by_model_and_prompt(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = write_tiny_model(tmp_path / "first", TinyModel(seed=1))
    second = write_tiny_model(tmp_path / "second", TinyModel(seed=2))
    reference = Oracle(first, cache).greedy([5], 8)
    assert len(list(cache.iterdir())) == 1
    assert Oracle(first, cache).greedy([5], 8) == reference
    assert len(list(cache.iterdir())) == 1
    assert Oracle(second, cache).greedy([5], 8).ids != reference.ids
    assert Oracle(first, cache).greedy([6], 8).ids != reference.ids
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("tied", [False, True])
def test_a_tiny_models_text_is_varied(tmp_path: Path, tied: bool) -> None:
    """A model that soon repeats itself would hide lost or swapped blocks."""
    oracle = Oracle(write_tiny_model(tmp_path / "tiny", TinyModel(tied=tied)), tmp_path)
    ids = oracle.greedy([5, 6, 7], 64).ids
    assert len(set(ids)) > 32
    assert oracle.greedy([5, 6, 8], 64).ids[8:] != ids[8:]
