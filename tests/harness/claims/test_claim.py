"""The data file: complete, consistent with the paper's figures, and honest about what decides nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import paper
from harness.claims.claim import EVIDENCE, FILE, load
from harness.claims.experiments import OTHERS
from harness.reproduce.cells import is_held_out

# Not predictions by the rule for cells, and yet decided by what runs: emulation charges no residual lookup,
# and a ratio of communication to communication does not depend on the group's size.
NOT_DECLARED = {("ablation-dbp-lookup", "emulated")} | {
    ("exposed-share-nestpipe-2d", kind) for kind in ("emulated", "simulated")
}


def test_every_figure_that_the_paper_states_is_a_claim() -> None:
    claimed = {(claim.row, claim.paper.printed) for claim in load().claims}
    for name in paper.names():
        for cell in paper.load(name).cells.values():
            # A base is 1.00x by definition; derived figures follow from those that are stated.
            if cell.mark != "D" and cell.printed != "1.00x":
                assert (cell.row, cell.printed) in claimed, f"{name}: {cell}"


def test_no_claim_is_tested_on_what_was_calibrated_or_declared() -> None:
    for claim in load().claims:
        if claim.experiment not in OTHERS and not is_held_out(claim.row, claim.metric):
            for kind in claim.tests:
                assert (claim.id, kind) in NOT_DECLARED, claim.id


def test_unverified_figures_decide_nothing() -> None:
    unverified = [claim for claim in load().claims if claim.paper.mark == "?"]
    assert unverified
    assert not any(claim.tests for claim in unverified)


def test_costs_name_the_row() -> None:
    catalogue = load()
    [wanted] = catalogue.choose(["fresh-dbp-proved"], EVIDENCE)
    assert catalogue.cost(wanted).command == "nestpipe verify dbp"


def test_claims_are_chosen_by_pattern_and_evidence() -> None:
    catalogue = load()
    wanted = catalogue.choose(["speedup-nestpipe-*"], ["simulated", "emulated"])
    assert {each.claim.column for each in wanted} == {
        *(f"{size}:speedup" for size in (128, 256, 512, 1024, 1536)),
        "speedup",
    }
    assert len(wanted) == 12
    with pytest.raises(ValueError, match=r"did you mean 'equal-dbp'"):
        catalogue.choose(["equal-dbq"], EVIDENCE)
    with pytest.raises(ValueError, match="no emulated evidence for equal-dbp: use measured"):
        catalogue.choose(["equal-dbp"], ["emulated"])


def edit(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    document = json.loads(FILE.read_text(encoding="utf-8"))
    change(document["claims"][0])
    return document


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda claim: claim.update(rule="whithin"), "did you mean 'within'"),
        (lambda claim: claim.update(rule="bound"), "does not go with the figure '5793.83'"),
        (lambda claim: claim.update(id="step-2d-sp-1536"), "is there twice"),
        (lambda claim: claim.update(column="steps_ms"), "no cell"),
        (lambda claim: claim.update(tests={"measured": 0.1}), "no measured evidence"),
        (lambda claim: claim.update(tests={"simulated": 0.1}), "either tests or is closest"),
        (lambda claim: claim.pop("why"), "say why"),
        (lambda claim: claim.pop("text"), "text"),
        (
            lambda claim: claim.update(
                paper={"printed": "1", "mark": "?", "source": ""}, closest=[], tests={"simulated": 0.1}
            ),
            "never a reference",
        ),
    ],
)
def test_a_broken_claim_is_named(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "claims.json"
    file.write_text(json.dumps(edit(change)))
    with pytest.raises(ValueError, match=message) as raised:
        load(file)
    assert str(file) in str(raised.value)


def test_other_files_are_no_claims(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="install a checkout"):
        load(tmp_path / "claims.json")
    newer = tmp_path / "newer.json"
    newer.write_text(json.dumps(json.loads(FILE.read_text()) | {"schema": 2}))
    with pytest.raises(ValueError, match="schema 2 is not 1"):
        load(newer)
    cut = tmp_path / "cut.json"
    cut.write_text(FILE.read_text()[:500])
    with pytest.raises(ValueError, match=r"cut\.json"):
        load(cut)
