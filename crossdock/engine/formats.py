"""The words for how an engine holds keys and values, and attends to them."""

from __future__ import annotations

from typing import Literal

# Of the KV cache's numbers; fp8_ds_mla is for DeepSeek's latent attention.
KvDtype = Literal["f32", "bf16", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla"]
# How the positions of a prompt attend in latent attention.
MlaPrefill = Literal["absorbed", "expanded"]
