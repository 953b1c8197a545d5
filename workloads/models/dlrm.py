"""DLRM-v2: DLRM (Naumov et al., 2019) with the low-rank cross network of DCN-v2 (Wang et al., WWW 2021).

The bottom layers bring a sample's numeric features to one vector; with each field's rows, summed over the
sample's keys, it makes x_0. A cross layer is `x_(l+1) = x_0 * (W_l V_l x_l + b_l) + x_l`, V_l of `cross_rank`
rows; the over layers and a last one of width 1 end in the logit of a click.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from workloads.interface import SequenceBatch
from workloads.models.activation import activation_of
from workloads.models.configs import DlrmConfig
from workloads.models.initial import initialise
from workloads.models.names import tables_and_features


class LowRankCross(nn.Module):
    """One layer of the cross network; see the module's docstring."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.v = nn.Linear(width, rank, bias=False)
        self.w = nn.Linear(rank, width)

    def forward(self, x: torch.Tensor, x0: torch.Tensor) -> torch.Tensor:
        """[S, width] each -> [S, width]."""
        crossed: torch.Tensor = x0 * self.w(self.v(x)) + x
        return crossed


class DlrmHead(nn.Module):
    """Everything but the tables. Without them inside, it is one leaf to TorchRec's tracer."""

    def __init__(self, features: Sequence[str], config: DlrmConfig) -> None:
        super().__init__()
        self.features = list(features)
        self.num_dense = config.num_dense
        self.bottom = _layers((config.num_dense, *config.bottom), config.activation)
        from_dense = config.bottom[-1] if config.num_dense else 0
        width = from_dense + len(self.features) * config.embedding_dim
        self.cross = nn.ModuleList(LowRankCross(width, config.cross_rank) for _ in range(config.cross_layers))
        self.over = _layers((width, *config.over), config.activation)
        self.logit = nn.Linear(config.over[-1], 1)

    def forward(
        self,
        pooled: KeyedTensor | Mapping[str, torch.Tensor],
        dense: torch.Tensor | None,
        labels: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean binary cross-entropy and the logits [S], from each feature's pooled rows [S, dim]."""
        # TorchRec's own modules give float32 rows whatever the table's dtype.
        dtype = self.logit.weight.dtype
        parts = [pooled[feature].to(dtype) for feature in self.features]
        if self.num_dense:
            parts.insert(0, self.bottom(self._checked(dense).to(dtype)).to(dtype))
        x0 = x = torch.cat(parts, dim=1)
        for layer in self.cross:
            x = layer(x, x0)
        logits = self.logit(self.over(x)).squeeze(1).to(dtype)
        return functional.binary_cross_entropy_with_logits(logits, labels.to(dtype)), logits

    def _checked(self, dense: torch.Tensor | None) -> torch.Tensor:
        if dense is None or dense.shape[1] != self.num_dense:
            found = "none" if dense is None else str(dense.shape[1])
            raise ValueError(
                f"the model was built for num_dense={self.num_dense} numeric features a sample, the batch "
                f"has {found} in `dense`"
            )
        return dense


class Dlrm(nn.Module):
    """One table a feature; `forward(batch)` returns (loss, logits [S])."""

    def __init__(
        self, config: DlrmConfig, num_rows: Sequence[int], features: Sequence[str] | None = None
    ) -> None:
        super().__init__()
        names = tables_and_features(len(num_rows), features)
        tables = [
            EmbeddingBagConfig(
                name=table,
                embedding_dim=config.embedding_dim,
                num_embeddings=rows,
                feature_names=[feature],
                pooling=PoolingType.SUM,
            )
            for (table, feature), rows in zip(names, num_rows, strict=True)
        ]
        self.embedding_bag_collection = EmbeddingBagCollection(tables=tables)
        self.head = DlrmHead([feature for _, feature in names], config)

    def forward(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss, a mean over samples, and logits [S]."""
        pooled = self.embedding_bag_collection(batch.sparse_features)
        loss, logits = self.head(pooled, batch.dense, batch.labels)
        return loss, logits


def _layers(widths: Sequence[int], activation: str) -> nn.Sequential:
    """Linear layers between `widths`, each with its activation; none where there is nothing to bring up."""
    pairs = itertools.pairwise(widths) if widths[0] else ()
    layers = [(nn.Linear(narrow, wide), activation_of(activation)) for narrow, wide in pairs]
    return nn.Sequential(*itertools.chain.from_iterable(layers))


def build(
    config: DlrmConfig, num_rows: Sequence[int], seed: int, features: Sequence[str] | None = None
) -> Dlrm:
    """The model with one table a feature and weights that are a function of `seed`."""
    return initialise(Dlrm(config, num_rows, features), seed)
