"""Bounds of the kvstore's calls."""

from __future__ import annotations

from typing import Final

# The longest context of 1M tokens has 32,768 blocks.
CHAIN_BLOCKS_MAX: Final = 32_768
TTL_MS_MIN: Final = 1
TTL_MS_MAX: Final = 600_000
CHECKSUM_BYTES: Final = 16
