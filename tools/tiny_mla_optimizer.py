"""The optimizer of the tiny MLA model: Muon for matrices, Adam for the rest.

Muon (Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon/) moves a matrix by its
momentum with all singular values made about one, by five steps of a quintic Newton-Schulz
iteration. On this model it reaches a loss in about half the tokens that Adam needs, and tokens are
what an hour on two cores is short of. Matrices of one shape are stepped as one batch.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

import torch
from torch import Tensor, distributed, nn

from tools.tiny_mla_model import TinyMla

_NEWTON_SCHULZ: Final = (3.4445, -4.7750, 2.0315)  # The coefficients of the article.
_NEWTON_SCHULZ_STEPS: Final = 5


class Optimizer:
    """Steps all parameters; learning rates are scaled by one factor, which the schedule gives."""

    def __init__(self, model: TinyMla, rank: int, crew: int) -> None:
        self.rank, self.crew = rank, crew
        self.muon_rate = 0.02
        self.momentum = 0.95
        self.weight_decay = 0.05
        by_shape: dict[tuple[int, ...], list[nn.Parameter]] = {}
        adam: list[dict[str, Any]] = []
        for name, parameter in model.named_parameters():
            is_matrix = "_proj" in name or ".experts." in name
            if is_matrix:
                by_shape.setdefault(tuple(parameter.shape[-2:]), []).append(parameter)
                continue
            rate = 0.01 if "embed" in name else 0.002 if "gate" in name else 0.004
            adam.append({"params": [parameter], "lr": rate, "base": rate})
        self.groups = list(by_shape.values())
        self.moments = [
            torch.zeros(sum(p.numel() // (p.shape[-1] * p.shape[-2]) for p in group), *shape)
            for shape, group in by_shape.items()
        ]
        self.adam = torch.optim.Adam(adam, betas=(0.9, 0.95), eps=1e-10, fused=True)

    def step(self, factor: float) -> None:
        """Applies the gradients, which are the same on all workers, and clears them."""
        for adam_group in self.adam.param_groups:
            adam_group["lr"] = adam_group["base"] * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        with torch.no_grad():
            self._step_matrices(self.muon_rate * factor)

    def _step_matrices(self, rate: float) -> None:
        # Each worker makes its share of every group's updates; the sum is all of them.
        updates = [self._update(*pair) for pair in zip(self.groups, self.moments, strict=True)]
        flat = torch.cat([update.flatten() for update in updates])
        if self.crew > 1:
            distributed.all_reduce(flat)
        at = 0
        for parameter in itertools.chain.from_iterable(self.groups):
            rows, columns = parameter.shape[-2:]
            update = flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
            parameter.mul_(1 - rate * self.weight_decay)
            parameter.add_(update, alpha=-rate * max(1.0, rows / columns) ** 0.5)
            parameter.grad = None

    def _update(self, group: list[nn.Parameter], moment: Tensor) -> Tensor:
        gradient = torch.cat([_gradient(p).view(-1, *moment.shape[1:]) for p in group])
        moment.lerp_(gradient, 1 - self.momentum)
        gradient.lerp_(moment, self.momentum)
        update = torch.zeros_like(gradient)
        share = slice(self.rank, None, self.crew)
        update[share] = _orthogonal(gradient[share])
        return update

    def state_dict(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "moments": self.moments}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        for moment, saved in zip(self.moments, state["moments"], strict=True):
            moment.copy_(saved)


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _orthogonal(gradients: Tensor) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly: singular values between 0.7 and 1.2."""
    a, b, c = _NEWTON_SCHULZ
    is_tall = gradients.shape[1] > gradients.shape[2]
    x = gradients.mT if is_tall else gradients
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(_NEWTON_SCHULZ_STEPS):
        square = x @ x.mT
        x = a * x + (b * square + c * (square @ square)) @ x
    return (x.mT if is_tall else x).float()
