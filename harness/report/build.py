"""From folders to a report: the sections in their order, and the files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.report import (
    claims,
    comparison,
    environment,
    ladder,
    reproduction,
    timelines,
    training,
    trends,
)
from harness.report.page import Hint, Page, Section, unique
from harness.report.sources import Results, find_results

_ABSENT = {
    "comparison": Hint("comparison, breakdown, scaling, loss curves", "nestpipe run METHOD... --workers 1,2"),
    "paper": Hint("the paper's tables and figures", "nestpipe reproduce all --evidence simulated"),
    "communication": Hint("exposed against total communication", "nestpipe reproduce table3"),
    "training": Hint("accuracy by epoch", "nestpipe train METHOD..."),
    "timeline": Hint("Gantt charts", "nestpipe run METHOD... --trace FOLDER/trace.jsonl"),
    "ladder": Hint("a ladder of changes", "nestpipe sweep FILE"),
    "claims": Hint("verdicts on the paper's claims", "nestpipe claims run"),
    "trends": Hint("trends", "nestpipe run METHOD... at another commit, into the same folder"),
}


def build(folders: Sequence[Path]) -> Page:
    """Read the folders and draw what they hold; see `find_results` for what is refused."""
    results = find_results(folders)
    sections = tuple(_sections(results))
    names = {section.name for section in sections}
    page = Page(
        title="NestPipe results",
        summary=_summary(folders, results),
        sections=sections,
        absent=tuple(hint for name, hint in _ABSENT.items() if name not in names),
    )
    drawn = [figure.name for figure in page.figures()] + [timeline.name for timeline in page.timelines()]
    assert unique([*drawn, *names]), drawn
    return page


def _sections(results: Results) -> Iterator[Section]:
    if results.invocations:
        yield environment.section(results)
    for make in (
        comparison.section,
        reproduction.section,
        reproduction.communication,
        training.section,
        timelines.section,
        ladder.section,
        claims.section,
        trends.section,
    ):
        section = make(results)
        if section is not None:
            yield section


def _summary(folders: Sequence[Path], results: Results) -> str:
    where = ", ".join(folder.resolve().name for folder in folders)
    if not results.invocations:
        return f"traces, sweeps or claims in {where}"
    days = [each["time"][:10] for each in results.invocations]
    span = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    number = len(results.invocations)
    return f"{number} run{'s' if number > 1 else ''} in {where}, {span}"


def write(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8"
    ) as file:
        temporary = Path(file.name)
        try:
            file.write(text)
        except BaseException:
            temporary.unlink()
            raise
    # As any new file; a temporary one is its owner's alone.
    temporary.chmod(0o644)
    temporary.replace(path)
