"""Which item each token of a user is: interests, popularity, and a hot set that moves on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.bijection import Bijection
from workloads.configs import IndustrialConfig
from workloads.hashing import UInt64, below, hash_of, hash_stream, uniform
from workloads.zipf import ZipfRanks

Ints = NDArray[np.int64]

# What a hash is drawn for: the streams must not overlap.
_SPREAD, _TOPIC, _RATE, _PHASE = range(100, 104)

_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class ItemDraws:
    """Items as functions of (seed, step, token's hash, user); no array of the table's size is made.

    A token is drawn from everybody's Zipf distribution over the live ranks, or, with the chance
    `own_share`, from one of its user's `topics_a_user` topics. A topic holds every `num_topics`-th rank and
    is Zipf inside. Where a rank's item lies in the table is a bijection of (rank, generation).
    """

    config: IndustrialConfig
    seed: int

    @property
    def num_live(self) -> int:
        """Ranks that have a chance at a step."""
        return self.config.num_live or self.config.num_items

    def draw(self, states: UInt64, positions: Ints, users: Ints, step: int) -> Ints:
        """Items of tokens [n], given their sample's state, their position in it and their user."""
        config = self.config
        rank_hashes = hash_stream(states, 2 * positions)
        choices = uniform(hash_stream(states, 2 * positions + 1))
        is_own = choices < config.own_share
        ranks = np.empty(len(states), dtype=np.int64)
        ranks[~is_own] = ZipfRanks(self.num_live, config.exponent).draw(rank_hashes[~is_own])
        if is_own.any():
            # Below own_share the same number is uniform again, and chooses among the user's topics.
            chosen = (choices[is_own] / config.own_share * config.topics_a_user).astype(np.int64)
            topics = self.topics_of(users[is_own], chosen)
            inside = ZipfRanks(config.topic_items or self.num_live // config.num_topics, config.exponent)
            ranks[is_own] = inside.draw(rank_hashes[is_own]) * config.num_topics + topics
        return self.items_at(ranks, step)

    def topics_of(self, users: Ints, numbers: Ints) -> Ints:
        """Topic number `numbers` (from 0) of each user: [n], [n] -> [n]."""
        return below(hash_of(self.seed, _TOPIC, users, numbers), self.config.num_topics)

    def items_at(self, ranks: Ints, step: int) -> Ints:
        """The items that stand at `ranks` in the order of popularity at a step.

        Two ranks may name one item where their generations differ: a hot item that was a rare one before.
        """
        spread = Bijection.of(self.config.num_items, self.seed, _SPREAD)
        # Almost the golden part of the table, so that generations lie far from each other and from the head.
        stride = int(self.config.num_items * _GOLDEN)
        places = ranks + self._generations(ranks, step) * stride
        return spread.at(places % self.config.num_items)

    def _generations(self, ranks: Ints, step: int) -> Ints:
        """How often each rank's item has been replaced until a step.

        A rank's rate of replacement is u ** (1 / drift - 1), u uniform: its mean is `drift`, and the slow
        ranks make a heavy tail of lifetimes, so that some items stay hot for long whatever the drift.
        """
        drift = self.config.drift
        if drift == 0.0:
            return np.zeros(len(ranks), dtype=np.int64)
        rates = uniform(hash_of(self.seed, _RATE, ranks)) ** (1.0 / drift - 1.0)
        return np.floor(step * rates + uniform(hash_of(self.seed, _PHASE, ranks))).astype(np.int64)
