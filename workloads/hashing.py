"""Counter-based random numbers: each is a function of its coordinates, not of what was drawn before.

So a sample has the same keys, negatives and dropout whichever worker or micro-batch it lands in. The
mixing function is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

UInt64 = NDArray[np.uint64]

GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1


def _mix(state: UInt64) -> UInt64:
    """A bijection of 64-bit integers whose output bits look independent; overwrites `state`."""
    state ^= state >> np.uint64(SHIFTS[0])
    state *= np.uint64(FACTORS[0])
    state ^= state >> np.uint64(SHIFTS[1])
    state *= np.uint64(FACTORS[1])
    state ^= state >> np.uint64(SHIFTS[2])
    return state


def hash_of(seed: int, *coordinates: ArrayLike) -> UInt64:
    """One hash for each element of the broadcast integer `coordinates`, in their order."""
    state = _mix(np.array([seed & _MASK], dtype=np.uint64))
    for coordinate in coordinates:
        state = _mix((state ^ np.asarray(coordinate).astype(np.uint64)) + np.uint64(GOLDEN))
    return state


def hash_stream(states: UInt64, positions: NDArray[np.int64]) -> UInt64:
    """Draw number `positions[i]` (from 0) of the SplitMix64 generator in state `states[i]`."""
    return _mix(states + (positions.view(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN))


def uniform(hashes: UInt64) -> NDArray[np.float64]:
    """Hashes as uniform numbers in [0, 1), 53 bits each."""
    # Signed integers convert to floats several times faster than unsigned ones.
    return (hashes >> np.uint64(11)).view(np.int64).astype(np.float64) * 2.0**-53


def below(hashes: UInt64, bound: int) -> NDArray[np.int64]:
    """Hashes as integers in [0, bound), uniform to within bound / 2**53."""
    return (uniform(hashes) * bound).astype(np.int64)


def normal(hashes: UInt64) -> NDArray[np.float64]:
    """Hashes as standard normal numbers (Box and Muller's transform on two draws)."""
    zeros = np.zeros(hashes.shape, dtype=np.int64)
    radius = np.sqrt(-2.0 * np.log1p(-uniform(hash_stream(hashes, zeros))))
    angle = 2.0 * np.pi * uniform(hash_stream(hashes, zeros + 1))
    return np.asarray(radius * np.cos(angle))
