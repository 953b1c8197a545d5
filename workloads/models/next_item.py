"""The next-item loss: a sampled softmax over the item that came and the sample's negatives."""

from __future__ import annotations

import torch
from torch.nn import functional

from nestpipe.kernels.padding import Padding


def next_item_losses(
    hidden: torch.Tensor,
    items: torch.Tensor,
    item_ids: torch.Tensor,
    negatives: torch.Tensor,
    negative_ids: torch.Tensor,
    padding: Padding,
    negative_padding: Padding,
    temperature: float,
) -> torch.Tensor:
    """Mean loss over each sample's predicted positions: [S], 0 for a sample of fewer than two items.

    `hidden` and `items` [num_tokens, dim] are states and rows of the items `item_ids` [num_tokens],
    `negatives` [num_negatives, dim] the rows of `negative_ids`, shared by all positions of a sample. The
    logits are cosines divided by `temperature`; a negative that is the target itself does not count.
    """
    queries = padding.pad(functional.normalize(hidden, dim=1))[:, :-1]
    targets = padding.pad(functional.normalize(items, dim=1))[:, 1:]
    others = negative_padding.pad(functional.normalize(negatives, dim=1))
    positive = (queries * targets).sum(dim=2, keepdim=True) / temperature
    negative = queries @ others.transpose(1, 2) / temperature
    ignored = _ignored(item_ids, negative_ids, padding, negative_padding)
    logits = torch.cat([positive, negative.masked_fill(ignored, float("-inf"))], dim=2)
    losses = torch.logsumexp(logits, dim=2) - positive.squeeze(2)
    num_predicted = (padding.lengths - 1).clamp(min=0).unsqueeze(1)
    positions = torch.arange(losses.shape[1], device=losses.device)
    losses = losses.masked_fill(positions >= num_predicted, 0.0)
    return losses.sum(dim=1) / num_predicted.squeeze(1).clamp(min=1)


def _ignored(
    item_ids: torch.Tensor, negative_ids: torch.Tensor, padding: Padding, negative_padding: Padding
) -> torch.Tensor:
    """Negatives that are padding or the target itself: [S, width - 1, negative width]."""
    target_ids = padding.pad(item_ids)[:, 1:].unsqueeze(2)
    is_target = negative_padding.pad(negative_ids).unsqueeze(1) == target_ids
    places = torch.arange(negative_padding.width, device=negative_ids.device)
    is_padding = places >= negative_padding.lengths.unsqueeze(1)
    return is_target | is_padding.unsqueeze(1)
