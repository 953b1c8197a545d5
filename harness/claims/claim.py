"""The paper's claims as data: what is claimed, with which mark, and what can put it to the test here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from harness import paper
from harness.claims.rules import RULES
from harness.options import nearest
from harness.paper import PaperCell

# Not beside the tables and figures themselves: each file there is one of them.
FILE = paper.FOLDER / "claims" / "claims.json"
SCHEMA = 1
EVIDENCE = ("proved", "simulated", "emulated", "measured")
QUICK = ("proved", "simulated")
"""Kinds of evidence that take seconds."""


@dataclass(frozen=True)
class Cost:
    """What it takes to get one kind of evidence from one experiment, all its claims together."""

    command: str
    """Shows the same figures, and more beside them; `{row}` stands for a claim's row."""
    seconds: float
    """About, on two cores; emulated, with as many steps and workers as there are by default."""
    memory_mb: float
    """About, all processes together."""


@dataclass(frozen=True)
class Claim:
    """One claim; its figure is found at (row, column) of an experiment."""

    id: str
    text: str
    experiment: str
    row: str
    column: str
    paper: PaperCell
    source: str
    """Where the paper's figure comes from."""
    rule: str
    """One of `RULES`: when a value of ours agrees with the paper's."""
    tests: Mapping[str, float]
    """The tolerance by kind of evidence, for the kinds that decide about the claim."""
    closest: tuple[str, ...] = ()
    """Kinds of evidence that come close and decide nothing."""
    why: str = ""
    """Why they decide nothing; a word on the tests where there is no such kind."""

    @property
    def evidence(self) -> tuple[str, ...]:
        """Every kind that there is."""
        return tuple(kind for kind in EVIDENCE if kind in self.tests or kind in self.closest)

    @property
    def metric(self) -> str:
        """The column without the point of a sweep."""
        return self.column.rpartition(":")[2]


@dataclass(frozen=True)
class Wanted:
    """One claim with one kind of evidence."""

    claim: Claim
    evidence: str


@dataclass(frozen=True)
class Catalogue:
    """All claims, and what the evidence for them costs."""

    claims: tuple[Claim, ...]
    costs: Mapping[tuple[str, str], Cost]
    """By experiment and evidence."""

    def cost(self, wanted: Wanted) -> Cost:
        """What it takes to get the evidence."""
        cost = self.costs[wanted.claim.experiment, wanted.evidence]
        return replace(cost, command=cost.command.replace("{row}", wanted.claim.row))

    def choose(self, patterns: Sequence[str], kinds: Sequence[str]) -> list[Wanted]:
        """The claims whose ids match any of the patterns, each with every kind of evidence asked for.

        No pattern means all claims. ValueError for a pattern that matches none, with the nearest id, and
        where none of what matches has such evidence.
        """
        chosen = self.claims if not patterns else tuple(self._matching(patterns))
        wanted = [Wanted(claim, kind) for claim in chosen for kind in claim.evidence if kind in kinds]
        if not wanted:
            known = ", ".join(dict.fromkeys(kind for claim in chosen for kind in claim.evidence))
            raise ValueError(f"no {' or '.join(kinds)} evidence for {', '.join(patterns)}: use {known}")
        return wanted

    def _matching(self, patterns: Sequence[str]) -> Iterator[Claim]:
        ids = [claim.id for claim in self.claims]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in ids):
                close = difflib.get_close_matches(pattern, ids, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]!r}?" if close else "`nestpipe claims list` shows all"
                raise ValueError(f"no claim {pattern!r}: {hint}")
        yield from (c for c in self.claims if any(fnmatchcase(c.id, pattern) for pattern in patterns))


def load(file: Path = FILE) -> Catalogue:
    """All claims of the data file; ValueError that names the file and the claim that is wrong.

    FileNotFoundError outside a checkout: the data are no part of the installed packages.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file}: the paper's claims are missing; install a checkout with pip -e")
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']} is not {SCHEMA}: take code and data of one commit")
        return _parse(document)
    except KeyError as error:
        raise ValueError(f"{file}: {error} is missing") from None
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None


def _parse(document: Mapping[str, Any]) -> Catalogue:
    costs = {
        (experiment, kind): Cost(**cost)
        for experiment, kinds in document["experiments"].items()
        for kind, cost in kinds.items()
    }
    claims: dict[str, Claim] = {}
    for entry in document["claims"]:
        claim = _claim(entry)
        if claim.id in claims:
            raise ValueError(f"claim {claim.id!r} is there twice")
        _check(claim, costs)
        claims[claim.id] = claim
    return Catalogue(tuple(claims.values()), costs)


def _claim(entry: Mapping[str, Any]) -> Claim:
    fields = dict(entry)
    own = fields.pop("paper", None)
    place = fields["row"], fields["column"]
    if own is None:
        found = paper.load(fields["experiment"])
        cell, source = found.get(*place), found.source
        if cell is None:
            raise ValueError(f"claim {fields['id']!r}: the paper has no cell {place} in {found.name}")
    else:
        cell, source = PaperCell(*place, own["printed"], own["mark"]), own["source"]
    closest = tuple(fields.pop("closest", ()))
    return Claim(**fields, paper=cell, source=source, closest=closest)


def _check(claim: Claim, costs: Mapping[tuple[str, str], Cost]) -> None:
    where = f"claim {claim.id!r}"
    if claim.rule not in RULES:
        raise ValueError(f"{where}: unknown rule {claim.rule!r}: {nearest(claim.rule, RULES)}")
    if RULES[claim.rule].needs_bound != bool(claim.paper.bound):
        raise ValueError(f"{where}: rule {claim.rule!r} does not go with the figure {claim.paper.printed!r}")
    if claim.paper.mark == "?" and claim.tests:
        raise ValueError(f"{where}: a figure marked [?] is never a reference: name no tests")
    if set(claim.tests) & set(claim.closest) or not claim.evidence:
        raise ValueError(f"{where}: each kind of evidence either tests or is closest, and there must be one")
    if claim.closest and not claim.why:
        raise ValueError(f"{where}: say why {', '.join(claim.closest)} evidence decides nothing")
    for kind in (*claim.tests, *claim.closest):
        if (claim.experiment, kind) not in costs:
            raise ValueError(f"{where}: experiment {claim.experiment!r} has no {kind} evidence")
