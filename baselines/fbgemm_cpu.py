"""A CPU kernel for `fbgemm::jagged_unique_indices`, which TorchRec's index dedup needs.

FBGEMM ships the operator for CUDA only, so `use_index_dedup=True` cannot run on a CPU without this.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

_OPERATOR = "jagged_unique_indices"

_MAX_SCRATCH_KEYS = 7 * 2**20
"""Key spaces up to this size get a scratch slot a key, larger ones a sort. At four bytes a slot this is
the most that glibc hands out again without new pages; 20,000 ids of 7 M keys take 0.4 ms by scratch and
1.1 ms by sort, of 20 M keys 6 ms by scratch, nearly all of it page faults."""

_Arrays = tuple[np.ndarray, np.ndarray]


def check_device(device: torch.device) -> None:
    """ValueError for an accelerator where FBGEMM, by which TorchRec looks rows up, is built for CPUs."""
    import fbgemm_gpu  # noqa: F401 - defines the operator

    key = torch._C._dispatch_key_for_device(device.type)
    if device.type != "cpu" and not torch._C._dispatch_has_kernel_for_dispatch_key(
        f"fbgemm::{_OPERATOR}", key
    ):
        raise ValueError(
            f"TorchRec cannot run on {device}: the FBGEMM installed here has no operators for {key}; install "
            "requirements/cuda.txt, or leave out TorchRec's methods and the check of those that are compared "
            "with them"
        )


@cache
def register() -> torch.library.Library | None:
    """Give the operator a CPU kernel for the rest of the process; None where FBGEMM has one already."""
    import fbgemm_gpu  # noqa: F401 - defines the operator

    if torch._C._dispatch_has_kernel_for_dispatch_key(f"fbgemm::{_OPERATOR}", "CPU"):
        return None
    library = torch.library.Library("fbgemm", "IMPL")
    library.impl(_OPERATOR, jagged_unique_indices, "CPU")
    return library


def jagged_unique_indices(
    hash_size_cumsum: torch.Tensor,
    hash_size_offsets: torch.Tensor,
    offsets: torch.Tensor,
    indices: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unique ids of each table over all its features and samples, as FBGEMM's CUDA operator lays them out.

    `hash_size_cumsum` [F + 1] is the start of each feature's table in one space of keys (features of a
    table share it) and the size of that space; `hash_size_offsets` [F + 1] counts features, a table's
    first feature spanning them all and its others none; `offsets` [F * B + 1] and `indices` [num_ids]
    are the jagged ids, features of a table adjacent.

    Returns lengths [F * B] and offsets [F * B + 1], which spread a table's unique ids evenly over its
    F_table * B samples, the unique ids [num_unique], table by table and unordered inside a table, and
    for each id its place among them [num_ids]. Raises ValueError for an id outside of its table.
    """
    bounds = offsets.numpy()
    cumsum = hash_size_cumsum.numpy()
    num_features = cumsum.size - 1
    batch_size = (bounds.size - 1) // num_features
    ids = indices.numpy()
    feature_bounds = bounds[np.arange(num_features + 1) * batch_size]
    keys = _keys(ids, cumsum, feature_bounds)
    representatives, inverse = _unique(keys, int(cumsum[-1]))
    lengths = _lengths(hash_size_offsets.numpy(), feature_bounds, batch_size, inverse)
    unique_offsets = np.concatenate(([0], np.cumsum(lengths)))
    results = (lengths, unique_offsets, ids[representatives], inverse)
    return tuple(torch.from_numpy(array) for array in results)  # type: ignore[return-value]


def _keys(ids: np.ndarray, cumsum: np.ndarray, feature_bounds: np.ndarray) -> np.ndarray:
    """Ids in the key space that all tables share; ValueError for one outside of its own table."""
    num_ids = np.diff(feature_bounds)
    used = np.flatnonzero(num_ids)
    if used.size:
        table_ends = cumsum[np.searchsorted(cumsum, cumsum[used], side="right")]
        # One pass finds both ends: a negative id is a huge unsigned one.
        largest = np.maximum.reduceat(ids.view(np.uint64), feature_bounds[used])
        bad = used[largest >= (table_ends - cumsum[used]).astype(np.uint64)]
        if bad.size:
            here = ids[feature_bounds[bad[0]] : feature_bounds[bad[0] + 1]]
            raise ValueError(
                f"ids of feature {bad[0]} in this lookup run from {here.min()} to {here.max()}, "
                "which is outside of its table"
            )
    if used.size and cumsum[used[-1]] != 0:
        return ids + np.repeat(cumsum[:-1], num_ids)
    return ids


def _unique(keys: np.ndarray, num_keys: int) -> _Arrays:
    """For each unique key a position where it stands, and for each key the place of its unique one."""
    if num_keys <= _MAX_SCRATCH_KEYS:
        return _unique_by_scratch(keys, num_keys)
    return _unique_by_sort(keys)


def _unique_by_scratch(keys: np.ndarray, num_keys: int) -> _Arrays:
    """Every key writes its position into its own slot; those still there afterwards are the unique ones."""
    positions = np.arange(keys.size, dtype=np.int32)
    slots = np.empty(num_keys, dtype=np.int32)
    slots[keys] = positions
    representatives = np.flatnonzero(slots[keys] == positions)
    slots[keys[representatives]] = positions[: representatives.size]
    return representatives, slots[keys].astype(np.int64)


def _unique_by_sort(keys: np.ndarray) -> _Arrays:
    # torch.unique hashes and sorts faster than numpy's.
    unique, inverse = torch.unique(torch.from_numpy(keys), sorted=True, return_inverse=True)
    representatives = np.empty(unique.numel(), dtype=np.int64)
    representatives[inverse.numpy()] = np.arange(keys.size)
    return representatives, inverse.numpy()


def _lengths(
    first_features: np.ndarray, feature_bounds: np.ndarray, batch_size: int, inverse: np.ndarray
) -> np.ndarray:
    """Each table's number of unique ids, spread over its samples, the first ones taking the remainder."""
    lengths = np.zeros((feature_bounds.size - 1) * batch_size, dtype=np.int64)
    num_before = 0
    for first, last in zip(first_features[:-1].tolist(), first_features[1:].tolist(), strict=True):
        begin, end = feature_bounds[first], feature_bounds[last]
        if begin == end:
            continue
        num_so_far = int(inverse[begin:end].max()) + 1
        share, remainder = divmod(num_so_far - num_before, (last - first) * batch_size)
        lengths[first * batch_size : last * batch_size] = share
        lengths[first * batch_size : first * batch_size + remainder] += 1
        num_before = num_so_far
    return lengths
