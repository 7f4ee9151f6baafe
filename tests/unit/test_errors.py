"""What an error says."""

from __future__ import annotations

from crossdock.errors import invalid_argument


def test_the_field_comes_first_whatever_the_message_begins_with() -> None:
    error = invalid_argument("model", "model-7b is not here")
    assert (error.field, error.message) == ("model", "model: model-7b is not here")
