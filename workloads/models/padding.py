"""Between jagged tokens and a padded block: where each token of each sample sits."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Padding:
    """Tokens of S samples that follow each other, and their places in a block [S, width, ...].

    `lengths` [S], `samples` [num_tokens] and `positions` [num_tokens] are int64; `width` is the longest
    length, at least 1. Reading it from a device waits for the device.
    """

    lengths: torch.Tensor
    samples: torch.Tensor
    positions: torch.Tensor
    width: int

    @classmethod
    def of(cls, lengths: torch.Tensor, num_tokens: int) -> Padding:
        """The places of `num_tokens == lengths.sum()` tokens."""
        lengths = lengths.long()
        samples = torch.repeat_interleave(lengths, output_size=num_tokens)
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(num_tokens, device=lengths.device) - starts[samples]
        longest = int(lengths.max()) if len(lengths) else 0
        return cls(lengths, samples, positions, width=max(longest, 1))

    def pad(self, tokens: torch.Tensor) -> torch.Tensor:
        """[num_tokens, ...] -> [S, width, ...], zeros where there is no token."""
        num_samples, rest = len(self.lengths), tokens.shape[1:]
        block = tokens.new_zeros(num_samples * self.width, *rest)
        block = block.index_copy(0, self._places(), tokens)
        return block.view(num_samples, self.width, *rest)

    def unpad(self, block: torch.Tensor) -> torch.Tensor:
        """[S, width, ...] -> [num_tokens, ...]."""
        return block.flatten(0, 1).index_select(0, self._places())

    def last(self, tokens: torch.Tensor) -> torch.Tensor:
        """The last token of each sample, zeros for one without: [num_tokens, ...] -> [S, ...]."""
        each = torch.arange(len(self.lengths), device=self.lengths.device)
        return self.pad(tokens)[each, (self.lengths - 1).clamp(min=0)]

    def _places(self) -> torch.Tensor:
        return self.samples * self.width + self.positions
