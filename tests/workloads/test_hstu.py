"""HSTU against a plain loop over samples, tokens and heads, and what must not change its results."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.workloads.batches import histories_of, in_full_precision, rows_of, select
from workloads.configs import HstuConfig, InteractionsConfig
from workloads.interface import SequenceBatch
from workloads.models import hstu
from workloads.models.relative_bias import bias_of, time_buckets
from workloads.sequences import SequenceWorkload

CPU = torch.device("cpu")
LENGTHS = [5, 1, 2, 9, 3, 7, 1]
NUM_ITEMS = 11
SMALL: dict[str, Any] = {"embedding_dim": 6, "max_length": 9, "num_negatives": 5, "temperature": 0.3}


def create(**settings: Any) -> tuple[nn.Module, SequenceBatch]:
    """A float64 model with weights far from their start, and an uneven batch."""
    config = HstuConfig(**{**SMALL, "num_heads": 2, **settings})
    workload = SequenceWorkload(
        "test",
        histories_of(LENGTHS, NUM_ITEMS),
        InteractionsConfig(batch_size=len(LENGTHS)),
        config,
        lambda num_rows, seed: hstu.build(config, num_rows, seed),
        seed=2,
        num_workers=1,
    )
    model = in_full_precision(workload.model(CPU, torch.float64))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64), alpha=0.5)
    batch = next(workload.batches(rank=0, num_workers=1))
    return model, _made_uneven(batch)


def _made_uneven(batch: SequenceBatch) -> SequenceBatch:
    """The batch with a last sample without items, and with two, three and no negatives in some."""
    whole = select(batch, [*range(len(LENGTHS)), 0])
    for sample, num in ((3, 2), (5, 3), (0, 0)):
        whole.sparse_features = _shortened(whole.sparse_features, "negative", sample, num)
    whole.sparse_features = _shortened(whole.sparse_features, "item", len(LENGTHS), 0)
    whole.context = _shortened(whole.context, "timestamp", len(LENGTHS), 0)
    return whole


def _shortened(jagged: KeyedJaggedTensor | None, key: str, sample: int, num: int) -> KeyedJaggedTensor:
    """The same tensor with only `num` values of one key and sample."""
    assert jagged is not None
    rows = {name: rows_of(jagged, name) for name in jagged.keys()}  # noqa: SIM118
    rows[key][sample] = rows[key][sample][:num]
    flat = [row for name in rows for row in rows[name]]
    return KeyedJaggedTensor(
        keys=list(rows),
        values=torch.tensor([value for row in flat for value in row]),
        lengths=torch.tensor([len(row) for row in flat]),
    )


def silu(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + torch.exp(-x))


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean()
    return centred / torch.sqrt((centred**2).mean() + 1e-5) * weight + bias


class Reference:
    """The block equations token by token, with the parameters of a model by their names."""

    def __init__(self, model: nn.Module, config: HstuConfig) -> None:
        self.weights = dict(model.named_parameters())
        self.config = config
        self.table = self.weights["embedding_collection.embeddings.item.weight"]

    def hidden(self, items: list[int], times: list[int]) -> list[torch.Tensor]:
        x = [self.table[item] for item in items]
        for block in range(self.config.num_blocks):
            x = self._block(x, times, {n.split(".", 3)[3]: w for n, w in self._of_block(block)})
        return x

    def _of_block(self, block: int) -> list[tuple[str, torch.Tensor]]:
        return [(n, w) for n, w in self.weights.items() if n.startswith(f"head.blocks.{block}.")]

    def _block(
        self, x: list[torch.Tensor], times: list[int], w: dict[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        projected = [silu(w["uvqk.weight"] @ layer_norm(t, w["norm.weight"], w["norm.bias"])) for t in x]
        dim, heads = self.config.embedding_dim, self.config.num_heads
        output = []
        for i, token in enumerate(x):
            u = projected[i][:dim]
            parts = []
            for head in range(heads):
                own = slice(head * dim // heads, (head + 1) * dim // heads)
                attended = torch.zeros(dim // heads, dtype=token.dtype)
                for j in range(i + 1):
                    v, q, k = (
                        projected[j][dim : 2 * dim],
                        projected[i][2 * dim : 3 * dim],
                        projected[j][3 * dim :],
                    )
                    gap = max(abs(times[i] - times[j]), 1)
                    bucket = min(math.floor(math.log(gap) / 0.301), 128)
                    score = q[own] @ k[own] + w["position_bias"][i - j] + w["time_bias"][bucket]
                    attended = attended + silu(score) / self.config.max_length * v[own]
                parts.append(attended)
            normed = layer_norm(torch.cat(parts), w["attention_norm.weight"], w["attention_norm.bias"])
            output.append(w["output.weight"] @ (u * normed) + token)
        return output

    def sample_loss(self, items: list[int], times: list[int], negatives: list[int]) -> torch.Tensor:
        hidden = self.hidden(items, times)
        losses = []
        for position in range(len(items) - 1):
            target = items[position + 1]
            candidates = [target, *(item for item in negatives if item != target)]
            state = hidden[position] / hidden[position].norm()
            logits = torch.stack([state @ (self.table[c] / self.table[c].norm()) for c in candidates])
            losses.append(-torch.log_softmax(logits / self.config.temperature, dim=0)[0])
        return torch.stack(losses).mean() if losses else 0.0 * self.table.sum()

    def __call__(self, batch: SequenceBatch) -> tuple[torch.Tensor, torch.Tensor]:
        assert batch.context is not None
        samples = list(
            zip(
                rows_of(batch.sparse_features, "item"),
                rows_of(batch.context, "timestamp"),
                rows_of(batch.sparse_features, "negative"),
                strict=True,
            )
        )
        loss = torch.stack([self.sample_loss(*sample) for sample in samples]).mean()
        nothing = torch.zeros_like(self.table[0])
        last = [self.hidden(items, times)[-1] if items else nothing for items, times, _ in samples]
        return loss, torch.stack(last)


@pytest.mark.parametrize(("num_blocks", "num_heads"), [(1, 1), (2, 2), (3, 6)])
def test_loss_output_and_every_gradient_against_a_loop(num_blocks: int, num_heads: int):
    model, batch = create(num_blocks=num_blocks, num_heads=num_heads)
    config = HstuConfig(**SMALL, num_blocks=num_blocks, num_heads=num_heads)
    other, _ = create(num_blocks=num_blocks, num_heads=num_heads)
    loss, last = model(batch)
    expected_loss, expected_last = Reference(other, config)(batch)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(last, expected_last, rtol=1e-11, atol=1e-12)
    (loss + (last**2).sum()).backward()
    (expected_loss + (expected_last**2).sum()).backward()
    for (name, ours), (_, theirs) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert ours.grad is not None, name
        assert ours.grad.abs().max() > 0, name
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-11, msg=name)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_samples_do_not_see_each_other(dropout: float):
    """A sample's output and loss are the same alone, in a micro-batch and in the whole batch."""
    model, batch = create(dropout=dropout)
    loss, last = model(batch)
    cuts = [[6, 0], [2], [5, 7, 3], [1, 4]]
    parts = [model(select(batch, cut)) for cut in cuts]
    for cut, (_, output) in zip(cuts, parts, strict=True):
        torch.testing.assert_close(output, last[cut], rtol=1e-11, atol=1e-12)
    weighted = sum(len(cut) / 8 * part[0] for cut, part in zip(cuts, parts, strict=True))
    torch.testing.assert_close(weighted, loss, rtol=1e-12, atol=1e-13)


def test_gradients_of_micro_batches_add_up():
    model, batch = create(dropout=0.25)
    model(batch)[0].backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    for cut in ([0, 7, 1], [6], [2, 3, 4, 5]):
        (len(cut) / 8 * model(select(batch, cut))[0]).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-12, msg=name)


def test_dropout_is_a_function_of_the_seeds():
    model, batch = create(dropout=0.5)
    first, again = model(batch)[1], model(batch)[1]
    assert torch.equal(first, again)
    assert batch.seeds is not None
    changed = select(batch, list(range(8)))
    assert changed.seeds is not None
    changed.seeds[3] += 1
    other = model(changed)[1]
    assert not torch.allclose(other[3], first[3])
    torch.testing.assert_close(other[:3], first[:3])
    model.eval()
    evaluated = model(batch)[1]
    assert not torch.allclose(evaluated[3], first[3])
    without, _ = create(dropout=0.0)
    torch.testing.assert_close(without(batch)[1], evaluated)


def test_dropout_keeps_the_mean_and_its_share():
    ones = torch.ones(500, 64, dtype=torch.float64)
    seeds, positions = torch.arange(500) % 7, torch.arange(500)
    dropped = hstu.seeded_dropout(ones, seeds, positions, layer=1, rate=0.3)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.01)
    assert dropped.max().item() == pytest.approx(1 / 0.7)
    assert not torch.equal(dropped, hstu.seeded_dropout(ones, seeds, positions, layer=2, rate=0.3))


def test_time_buckets():
    edges = [0, 1, 2, 59, 60, 3_600, 86_400, 10**9, 2**62]
    buckets = time_buckets(torch.tensor([[0, edge] for edge in edges]))[:, 1, 0].tolist()
    assert buckets == [min(math.floor(math.log(max(edge, 1)) / 0.301), 128) for edge in edges]


def test_gradient_of_the_bias_lookup():
    bias = torch.randn(7, dtype=torch.float64, requires_grad=True)
    buckets = torch.tensor([[0, 6, 6], [3, 3, 3]])
    assert torch.autograd.gradcheck(lambda b: bias_of(b, buckets), (bias,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype):
    _, batch = create()
    model = hstu.build(HstuConfig(max_length=9, num_negatives=5), [NUM_ITEMS], 1).to(dtype)
    loss, last = model(batch)
    loss.backward()
    assert loss.dtype == last.dtype == dtype
    assert all(p.grad is not None and p.grad.dtype == dtype for p in model.parameters())


def test_all_samples_too_short():
    model, batch = create()
    short = select(batch, [i for i, row in enumerate(rows_of(batch.sparse_features, "item")) if len(row) < 2])
    loss, last = model(short)
    loss.backward()
    assert len(last) == 3
    assert loss.item() == 0
    assert all(p.grad is None or torch.equal(p.grad, torch.zeros_like(p.grad)) for p in model.parameters())


def test_misuse_is_named():
    model, batch = create(max_length=9)
    small = hstu.build(HstuConfig(max_length=8, embedding_dim=6), [NUM_ITEMS], 1)
    with pytest.raises(ValueError, match="9 items, more than the model's max_length=8"):
        small(batch)
    batch.context = None
    with pytest.raises(ValueError, match="context"):
        model(batch)
    dropping, batch = create(dropout=0.5)
    batch.seeds = None
    with pytest.raises(ValueError, match="seeds"):
        dropping(batch)


def test_it_learns_a_cycle():
    """Items that follow each other in a fixed cycle are predicted after a few steps."""
    config = HstuConfig(embedding_dim=16, num_blocks=1, max_length=20, num_negatives=30)
    histories = histories_of([20] * 30, 30)
    starts = torch.arange(30).repeat_interleave(20) + torch.arange(20).repeat(30)
    object.__setattr__(histories, "items", (starts % 30).numpy())
    workload = SequenceWorkload(
        "test",
        histories,
        InteractionsConfig(),
        config,
        lambda num_rows, seed: hstu.build(config, num_rows, seed),
        seed=1,
        num_workers=1,
    )
    model = workload.model(CPU)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _, batch in zip(range(60), workload.batches(rank=0, num_workers=1), strict=False):
        loss, _ = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
