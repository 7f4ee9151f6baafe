"""A small DeepSeek-V3 in torch, for training on a CPU: products in bf16, all else in f32.

Parameters are named as the checkpoint's tensors, but for the routed experts, which are stacked and
sorted into runs of tokens, so that each expert computes only the tokens that it was given.
`checkpoint_tensors` unstacks them. Keys and values are expanded from the latent: in training there
is no cache to keep small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

_LOSS_CHUNK_TOKENS: Final = 4096


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """The shape of the model; the names are config.json's."""

    vocab_size: int = 2048
    hidden_size: int = 192
    intermediate_size: int = 512
    moe_intermediate_size: int = 96
    num_hidden_layers: int = 5
    first_k_dense_replace: int = 1
    num_attention_heads: int = 8
    q_lora_rank: int = 96
    kv_lora_rank: int = 128
    qk_nope_head_dim: int = 32
    qk_rope_head_dim: int = 32
    v_head_dim: int = 32
    n_routed_experts: int = 8
    n_shared_experts: int = 1
    num_experts_per_tok: int = 2
    n_group: int = 2
    topk_group: int = 1
    routed_scaling_factor: float = 1.5
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class RmsNorm(nn.Module):
    """Scales a row to a root mean square of one, then by a weight per column."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Product(nn.Module):
    """A matrix product without bias, in bf16; its gradient reaches the f32 weight."""

    def __init__(self, columns: int, rows: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * std)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), self.weight.bfloat16())


def _scaled(columns: int) -> float:
    return 0.7 / math.sqrt(columns)


class Mlp(nn.Module):
    """The gated MLP: down(silu(gate(x)) * up(x))."""

    def __init__(self, spec: MlaSpec, size: int) -> None:
        super().__init__()
        self.gate_proj = Product(spec.hidden_size, size, _scaled(spec.hidden_size))
        self.up_proj = Product(spec.hidden_size, size, _scaled(spec.hidden_size))
        self.down_proj = Product(size, spec.hidden_size, 0.3 * _scaled(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Gate(nn.Module):
    """noaux_tc routing: sigmoid scores, the best group by its two best, and top-k within it."""

    e_score_correction_bias: Tensor
    load: Tensor

    def __init__(self, spec: MlaSpec) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.randn(spec.n_routed_experts, spec.hidden_size) * 0.02)
        self.register_buffer("e_score_correction_bias", torch.zeros(spec.n_routed_experts))
        self.register_buffer("load", torch.zeros(spec.n_routed_experts), persistent=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(weights, expert ids), both [tokens, num_experts_per_tok]."""
        spec = self.spec
        scores = F.linear(x.float(), self.weight).sigmoid()
        biased = scores.detach() + self.e_score_correction_bias
        grouped = biased.view(len(x), spec.n_group, -1)
        rank = grouped.topk(2, dim=-1).values.sum(-1)
        chosen = rank.topk(spec.topk_group, dim=-1).indices
        mask = torch.ones_like(rank).scatter(1, chosen, 0.0).bool()
        allowed = grouped.masked_fill(mask[..., None], -math.inf).flatten(1)
        ids = allowed.topk(spec.num_experts_per_tok, dim=-1).indices
        weights = scores.gather(1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * spec.routed_scaling_factor, ids


class Experts(nn.Module):
    """The routed experts, stacked: gate and up in one matrix, as [expert, rows, columns]."""

    def __init__(self, spec: MlaSpec) -> None:
        super().__init__()
        count, size, hidden = spec.n_routed_experts, spec.moe_intermediate_size, spec.hidden_size
        self.gate_up = nn.Parameter(torch.randn(count, 2 * size, hidden) * _scaled(hidden))
        self.down = nn.Parameter(torch.randn(count, hidden, size) * 0.3 * _scaled(size))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor, weights: Tensor, ids: Tensor, load: Tensor) -> Tensor:
        per_token = ids.shape[1]
        order = ids.flatten().argsort(stable=True)
        counts = ids.flatten().bincount(minlength=len(self.gate_up))
        load += counts
        runs = x.bfloat16()[order // per_token].split(counts.tolist())
        # Unbound at once: indexed one by one, each expert's gradient would be a whole stack.
        gate_ups, downs = self.gate_up.bfloat16().unbind(), self.down.bfloat16().unbind()
        outputs = []
        for run, gate_up, down in zip(runs, gate_ups, downs, strict=True):
            gate, up = F.linear(run, gate_up).chunk(2, dim=-1)
            outputs.append(F.linear(F.silu(gate) * up, down))
        back = torch.cat(outputs)[order.argsort()].view(*ids.shape, -1)
        return (back * weights[..., None]).sum(1)


class MoE(nn.Module):
    """Routed experts and the shared one, which every token passes."""

    def __init__(self, spec: MlaSpec) -> None:
        super().__init__()
        self.gate = Gate(spec)
        self.experts = Experts(spec)
        self.shared_experts = Mlp(spec, spec.moe_intermediate_size * spec.n_shared_experts)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        weights, ids = self.gate(flat)
        routed = self.experts(flat, weights, ids, self.gate.load)
        return routed.view(x.shape) + self.shared_experts(x)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on interleaved pairs; the pairs' halves are left apart, which no dot product sees."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even * cos - odd * sin, odd * cos + even * sin), dim=-1)


class Attention(nn.Module):
    """MLA in its expanded form."""

    def __init__(self, spec: MlaSpec) -> None:
        super().__init__()
        self.spec = spec
        hidden, heads = spec.hidden_size, spec.num_attention_heads
        rank, q_rank = spec.kv_lora_rank, spec.q_lora_rank
        self.q_a_proj = Product(hidden, q_rank, _scaled(hidden))
        self.q_a_layernorm = RmsNorm(q_rank, spec.rms_norm_eps)
        self.q_b_proj = Product(q_rank, heads * spec.qk_head_dim, _scaled(q_rank))
        self.kv_a_proj_with_mqa = Product(hidden, rank + spec.qk_rope_head_dim, _scaled(hidden))
        self.kv_a_layernorm = RmsNorm(rank, spec.rms_norm_eps)
        self.kv_b_proj = Product(
            rank, heads * (spec.qk_nope_head_dim + spec.v_head_dim), _scaled(rank)
        )
        self.o_proj = Product(heads * spec.v_head_dim, hidden, 0.3 * _scaled(hidden))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        spec, (batch, length, _) = self.spec, x.shape
        heads = spec.num_attention_heads

        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.view(batch, length, heads, spec.qk_head_dim).transpose(1, 2)
        q_nope, q_rope = q.split((spec.qk_nope_head_dim, spec.qk_rope_head_dim), dim=-1)
        latent, k_rope = self.kv_a_proj_with_mqa(x).split(
            (spec.kv_lora_rank, spec.qk_rope_head_dim), dim=-1
        )
        kv = self.kv_b_proj(self.kv_a_layernorm(latent))
        kv = kv.view(batch, length, heads, -1).transpose(1, 2)
        k_nope, v = kv.split((spec.qk_nope_head_dim, spec.v_head_dim), dim=-1)
        k_rope = rotate(k_rope[:, None].float(), cos, sin).bfloat16()
        q = torch.cat((q_nope, rotate(q_rope.float(), cos, sin).bfloat16()), dim=-1)
        k = torch.cat((k_nope, k_rope.expand(-1, heads, -1, -1)), dim=-1)

        scores = torch.matmul(q, k.transpose(2, 3)).float() * spec.qk_head_dim**-0.5 + mask
        out = torch.matmul(scores.softmax(-1).bfloat16(), v)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """One decoder layer: attention, then a dense or a mixed MLP, each after a norm."""

    def __init__(self, spec: MlaSpec, index: int) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(spec.hidden_size, spec.rms_norm_eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = RmsNorm(spec.hidden_size, spec.rms_norm_eps)
        dense = index < spec.first_k_dense_replace
        self.mlp = Mlp(spec, spec.intermediate_size) if dense else MoE(spec)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyMla(nn.Module):
    """The whole model; called with ids it returns the mean loss of each next token, in nats."""

    def __init__(self, spec: MlaSpec) -> None:
        super().__init__()
        self.spec = spec
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(spec.vocab_size, spec.hidden_size)
        self.model.layers = nn.ModuleList(Layer(spec, i) for i in range(spec.num_hidden_layers))
        self.model.norm = RmsNorm(spec.hidden_size, spec.rms_norm_eps)
        self.lm_head = Product(spec.hidden_size, spec.vocab_size, 0.3 * _scaled(spec.hidden_size))
        nn.init.normal_(self.model.embed_tokens.weight, std=0.5)

    def hidden(self, ids: Tensor) -> Tensor:
        """The normed output of the last layer, [batch, length, hidden_size]."""
        length, spec = ids.shape[1], self.spec
        pairs = torch.arange(0, spec.qk_rope_head_dim, 2, dtype=torch.float)
        frequencies = spec.rope_theta ** (-pairs / spec.qk_rope_head_dim)
        angles = torch.arange(length, dtype=torch.float)[:, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        mask = torch.full((length, length), -math.inf).triu(1)
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        return self.model.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.hidden(ids[:, :-1]).flatten(0, 1)
        targets = ids[:, 1:].flatten()
        loss = hidden.new_zeros(())
        for rows, wanted in zip(
            hidden.split(_LOSS_CHUNK_TOKENS), targets.split(_LOSS_CHUNK_TOKENS), strict=True
        ):
            loss = loss + F.cross_entropy(self.lm_head(rows).float(), wanted, reduction="sum")
        return loss / len(targets)

    def compile_layers(self) -> None:
        """Fuses the elementwise work, which takes half the time otherwise; needs a C++ compiler."""
        for layer in self.model.layers:
            layer.compile(dynamic=False)
        self.model.norm.compile(dynamic=False)

    def gates(self) -> list[Gate]:
        return [module for module in self.modules() if isinstance(module, Gate)]


def balance(gates: list[Gate], rate: float) -> float:
    """Moves each gate's bias towards even loads; returns the worst load over the even one."""
    worst = 0.0
    for gate in gates:
        mean = gate.load.mean()
        gate.e_score_correction_bias += rate * torch.sign(mean - gate.load)
        worst = max(worst, float(gate.load.max() / mean))
        gate.load.zero_()
    return worst


def checkpoint_tensors(model: TinyMla) -> dict[str, Tensor]:
    """The tensors as DeepSeek's checkpoints have them: bf16, the correction bias in f32."""
    tensors: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        if name.endswith("e_score_correction_bias"):
            tensors[name] = value.clone()
        elif name.endswith("experts.gate_up"):
            for expert, both in enumerate(value.bfloat16()):
                prefix = f"{name.removesuffix('gate_up')}{expert}"
                gate, up = both.chunk(2)
                tensors[f"{prefix}.gate_proj.weight"] = gate.clone()
                tensors[f"{prefix}.up_proj.weight"] = up.clone()
        elif name.endswith("experts.down"):
            for expert, down in enumerate(value.bfloat16()):
                tensors[f"{name.removesuffix('down')}{expert}.down_proj.weight"] = down.clone()
        else:
            tensors[name] = value.bfloat16()
    return tensors
