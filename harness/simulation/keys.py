"""How keys repeat inside a batch, in expectation: what deduplication saves, and what cutting costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class KeyStatistics:
    """Independent draws from a Zipf distribution, rank r with probability proportional to r ** -exponent."""

    exponent: float
    num_keys: int = 1_000_000
    tokens_per_batch: int = 512 * 200
    reference_exponent: float = 1.0
    """Skew that the cost model's figures are of."""

    def __post_init__(self) -> None:
        if self.exponent < 0 or self.num_keys < 1 or self.tokens_per_batch < 1:
            raise ValueError(
                "key statistics need an exponent of at least 0, num_keys and tokens_per_batch of at least 1; "
                f"got {self.exponent}, {self.num_keys}, {self.tokens_per_batch}"
            )

    @property
    def relative_rows(self) -> float:
        """Unique rows of a batch over those at the skew that the cost model is of."""
        whole = self.tokens_per_batch
        return self.unique(whole) / num_unique(self.reference_exponent, self.num_keys, whole)

    def unique(self, num_tokens: float) -> float:
        """Expected unique keys among `num_tokens`: the sum over keys of 1 - (1 - p) ** num_tokens."""
        return num_unique(self.exponent, self.num_keys, num_tokens)

    def inflation(self, cuts: Sequence[int]) -> float:
        """Unique rows of all micro-batches of a window over those of the whole batch."""
        whole = self.tokens_per_batch
        parts = {cut: self.unique(whole * cut / sum(cuts)) for cut in set(cuts)}
        return sum(parts[cut] for cut in cuts) / self.unique(whole)


@lru_cache(maxsize=4096)
def num_unique(exponent: float, num_keys: int, num_tokens: float) -> float:
    """See `KeyStatistics.unique`; ranks beyond the first thousand are taken in geometric bins."""
    import numpy as np  # only where skew is asked for

    edges = np.unique(
        np.concatenate([np.arange(1, min(1000, num_keys) + 1), np.geomspace(1, num_keys, 4000)])
    )
    edges = np.unique(np.append(np.floor(edges), num_keys + 1.0))
    widths = np.diff(edges)
    ranks = np.sqrt(edges[:-1] * (edges[1:] - 1))  # a bin of one rank is that rank
    weights = ranks**-exponent
    probabilities = weights / (weights * widths).sum()
    return float((widths * -np.expm1(num_tokens * np.log1p(-np.minimum(probabilities, 1 - 1e-12)))).sum())
