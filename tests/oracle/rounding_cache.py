"""transformers' KV cache, rounding as a pool of some KV dtype does.

The format is torch's own, the scales are as docs/decisions/0004-kv-block-layout.md has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

LATENT_SCALE_GROUP: Final = 128


def rounding_cache(kv_dtype: str) -> Any:
    """A cache whose keys and values, or latents and rotated parts, come back rounded."""
    import torch
    from transformers import DynamicCache

    class RoundingCache(DynamicCache):  # type: ignore[misc]
        def update(self, first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
            round_first, round_second = _rounders(torch, kv_dtype)
            return super().update(round_first(first), round_second(second), *args, **kwargs)

    return RoundingCache()


def unit_roundoff(kv_dtype: str) -> float:
    """Half the distance of neighbouring values, of their magnitude; of the coarsest part."""
    return {"bf16": 2.0**-9, "fp8_e4m3": 2.0**-4, "fp8_e5m2": 2.0**-3, "fp8_ds_mla": 2.0**-4}[
        kv_dtype
    ]


def _rounders(torch: Any, kv_dtype: str) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    def to_bf16(x: Any) -> Any:
        return x.to(torch.bfloat16).float()

    def to_fp8(x: Any, dtype: Any) -> Any:
        scale = x.abs().amax(-1, keepdim=True) / torch.finfo(dtype).max
        return (x / scale).to(dtype).float() * scale

    def to_e4m3(x: Any) -> Any:
        return to_fp8(x, torch.float8_e4m3fn)

    def to_e5m2(x: Any) -> Any:
        return to_fp8(x, torch.float8_e5m2)

    def to_latent(x: Any) -> Any:
        return to_e4m3(x.unflatten(-1, (-1, LATENT_SCALE_GROUP))).flatten(-2)

    return {
        "bf16": (to_bf16, to_bf16),
        "fp8_e4m3": (to_e4m3, to_e4m3),
        "fp8_e5m2": (to_e5m2, to_e5m2),
        "fp8_ds_mla": (to_latent, to_bf16),
    }[kv_dtype]
