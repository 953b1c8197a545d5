"""Between jagged tokens and a padded block: where each token of each sample sits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Padding:
    """Tokens of S samples that follow each other, and their places in a block [S, width, ...].

    `lengths` [S], `samples` [num_tokens] and `positions` [num_tokens] are int64; `width` is the longest
    length, at least 1.
    """

    lengths: torch.Tensor
    samples: torch.Tensor
    positions: torch.Tensor
    width: int

    @classmethod
    def of(cls, lengths: torch.Tensor, num_tokens: int, longest: int | None = None) -> Padding:
        """The places of `num_tokens == lengths.sum()` tokens.

        `longest` is the longest length where the host knows it; otherwise it is read, which waits for a
        device.
        """
        lengths = lengths.long()
        samples = torch.repeat_interleave(lengths, output_size=num_tokens)
        starts = lengths.cumsum(0) - lengths
        positions = torch.arange(num_tokens, device=lengths.device) - starts[samples]
        if longest is None:
            longest = int(lengths.max()) if len(lengths) else 0
        return cls(lengths, samples, positions, width=max(longest, 1))

    @cached_property
    def offsets(self) -> torch.Tensor:
        """The first token of each sample, and the number of all tokens: [S + 1], int64."""
        return torch.cat([self.lengths.new_zeros(1), self.lengths.cumsum(0)])

    @cached_property
    def places(self) -> torch.Tensor:
        """Each token's place among the S * width of the block: [num_tokens], int64."""
        return self.samples * self.width + self.positions

    def pad(self, tokens: torch.Tensor) -> torch.Tensor:
        """[num_tokens, ...] -> [S, width, ...], zeros where there is no token."""
        num_samples, rest = len(self.lengths), tokens.shape[1:]
        block = tokens.new_zeros(num_samples * self.width, *rest)
        block = block.index_copy(0, self.places, tokens)
        return block.view(num_samples, self.width, *rest)

    def unpad(self, block: torch.Tensor) -> torch.Tensor:
        """[S, width, ...] -> [num_tokens, ...]."""
        return block.flatten(0, 1).index_select(0, self.places)

    def heads(self, tokens: torch.Tensor, num_heads: int) -> torch.Tensor:
        """[num_tokens, num_heads * dim] -> [S, num_heads, width, dim], for attention."""
        return self.pad(tokens.view(len(tokens), num_heads, -1)).transpose(1, 2)

    def joined(self, block: torch.Tensor) -> torch.Tensor:
        """The way back: [S, num_heads, width, dim] -> [num_tokens, num_heads * dim]."""
        return self.unpad(block.transpose(1, 2).flatten(2))

    def last(self, tokens: torch.Tensor) -> torch.Tensor:
        """The last token of each sample, zeros for one without: [num_tokens, ...] -> [S, ...]."""
        each = torch.arange(len(self.lengths), device=self.lengths.device)
        return self.pad(tokens)[each, (self.lengths - 1).clamp(min=0)]
