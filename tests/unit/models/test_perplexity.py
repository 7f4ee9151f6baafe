from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from crossdock.models.perplexity import WINDOW_TOKENS, measure_perplexity

VOCAB = 50


class Bigrams:
    """Gives every token but the one after the last a logit of 0; checks how it is asked."""

    def __init__(self, advantage: float) -> None:
        self._advantage = advantage
        self.asked: list[tuple[int, int]] = []  # token, position

    def run(
        self, items: Sequence[tuple[Sequence[int], int, Sequence[int], bool]]
    ) -> npt.NDArray[np.float32]:
        rows = np.zeros((len(items), VOCAB), np.float32)
        for row, (tokens, position, table, wants_logits) in zip(rows, items, strict=True):
            (token,) = tokens
            assert wants_logits
            assert position < len(table) * 32
            self.asked.append((token, position))
            row[(token + 1) % VOCAB] = self._advantage
        return rows + np.float32(1e4)  # What is common to all changes nothing.


@pytest.mark.parametrize("num_tokens", [2, 130, WINDOW_TOKENS, WINDOW_TOKENS + 1, 1300])
def test_the_likelihood_is_that_of_the_next_token(num_tokens: int) -> None:
    ids = [i % VOCAB for i in range(num_tokens)]
    model = Bigrams(2.0)
    found = measure_perplexity(model, ids)
    assert found.value == pytest.approx(1 + (VOCAB - 1) * np.exp(-2.0), rel=1e-4)
    # Every token is asked for what follows it, but the last of its window.
    wanted = [(token, i % WINDOW_TOKENS) for i, token in enumerate(ids)]
    ends = {WINDOW_TOKENS - 1}
    asked = [pair for i, pair in enumerate(wanted) if pair[1] not in ends and i != num_tokens - 1]
    assert model.asked == asked
    assert found.num_tokens == len(asked)


def test_what_is_not_known_costs_all_choices() -> None:
    assert measure_perplexity(Bigrams(0.0), [3, 1, 4, 1, 5]).value == pytest.approx(VOCAB)
    surprised = measure_perplexity(Bigrams(8.0), [3, 1, 4, 1, 5]).value
    assert surprised > 10 * VOCAB


def test_a_text_without_a_next_token_is_refused() -> None:
    with pytest.raises(ValueError, match="1 tokens"):
        measure_perplexity(Bigrams(0.0), [3])
