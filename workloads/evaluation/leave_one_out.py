"""The leave-one-out split: a user's last item is held out, and all that came before is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.histories import Histories
from workloads.jagged import positions_of

Ints = NDArray[np.int64]

MIN_EVALUATED_LENGTH = 2
"""A user with fewer items has nothing to predict the last one from: it is trained on and not evaluated."""


@dataclass(frozen=True)
class LeaveOneOut:
    """Where each user's training items end, and what was held out; users are indices of `histories`."""

    histories: Histories

    def evaluated_users(self) -> Ints:
        """The users of whom an item is held out, ascending."""
        return np.flatnonzero(np.diff(self.histories.offsets) >= MIN_EVALUATED_LENGTH)

    def ends(self, users: Ints) -> Ints:
        """Position in the histories behind each user's last training item: [n] -> [n]."""
        starts, ends = self.histories.offsets[users], self.histories.offsets[users + 1]
        return ends - (ends - starts >= MIN_EVALUATED_LENGTH)

    def targets(self, users: Ints) -> Ints:
        """The held-out item of each of `users`, who all have one: [n] -> [n]."""
        return self.histories.items[self.histories.offsets[users + 1] - 1]

    def num_seen(self, users: Ints) -> int:
        """The training items of all of `users` [n] together."""
        return int((self.ends(users) - self.histories.offsets[users]).sum())

    def seen(self, users: Ints) -> tuple[Ints, Ints]:
        """All training items of `users`, not only the most recent ones.

        Returns each user's number of them [n] and the items, user by user [sum of the numbers]; an item
        that came twice is there twice.
        """
        starts = self.histories.offsets[users]
        lengths = self.ends(users) - starts
        return lengths, self.histories.items[np.repeat(starts, lengths) + positions_of(lengths)]
