"""What tables and figures say, against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.op_trace import read_trace
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
from harness.report.build import build
from harness.report.page import Figure, Section, Table, Timeline
from harness.report.sources import LADDER_FILE, Invocation, Results, find_results
from harness.sweep import session
from tests.harness.report import sample


def results(*invocations: Invocation) -> Results:
    return Results(tuple(sorted(invocations, key=lambda each: each.run_id)), {})


def tables(section: Section | None) -> list[Table]:
    assert section is not None
    return [block for block in section.blocks if isinstance(block, Table)]


def column(table: Table, name: str) -> list[str]:
    return [row[table.columns.index(name)] for row in table.rows]


def test_exactness_stands_beside_the_speedup() -> None:
    (table,) = tables(
        comparison.section(results(sample.invocation(sample.run_rows("1", ("torchrec", "nestpipe"), (1, 2)))))
    )
    # 21 and 11 ms on one worker, 22 and 12 on two.
    assert column(table, "speedup") == ["1.00x", f"{21 / 11:.2f}x", "1.00x", f"{22 / 12:.2f}x"]
    assert table.columns.index("exactness") == table.columns.index("speedup") + 1
    assert column(table, "exactness") == ["unchecked: 2.5e-07", "library: 2.5e-07"] * 2
    assert column(table, "efficiency") == ["1.00", "1.00", f"{21 / 22:.2f}", f"{11 / 12:.2f}"]
    # A setting at its default says nothing.
    assert table.notes[0].endswith("settings: preset=tiny, micro_batches=8")


def test_a_method_that_failed_its_check_has_no_speedup() -> None:
    rows = sample.run_rows("1", ("torchrec", "nestpipe"), (2,), exactness="FAILED")
    (table,) = tables(comparison.section(results(sample.invocation(rows))))
    assert column(table, "speedup") == ["1.00x", "-"]
    assert table.failed == {1}


def test_missing_rows_leave_a_method_out_and_say_so() -> None:
    rows = (row for row in sample.run_rows("1", ("torchrec", "dbp"), (2,)))
    kept = [row for row in rows if (row["method"], row["metric"]) != ("dbp", "qps")]
    (table,) = tables(comparison.section(results(sample.invocation(iter(kept)))))
    assert column(table, "method") == ["torchrec"]
    assert any("dbp at 2 workers: rows are missing" in note for note in table.notes)


def test_the_latest_of_each_set_up_is_shown() -> None:
    runs = [
        sample.invocation(sample.run_rows("1", sizes=(1,))),
        sample.invocation(sample.run_rows("2", sizes=(1,))),
        sample.invocation(sample.run_rows("3", sizes=(1,), seed=1)),
    ]
    found = tables(comparison.section(results(*runs)))
    assert [table.caption.rpartition(" ")[2] for table in found] == ["3", "2"]


def test_the_loss_figure_tells_how_far_methods_are_apart(tmp_path: Path) -> None:
    sample.write_run(
        tmp_path, "20261130T000000Z-000001", methods=("torchrec", "dbp", "nestpipe"), sizes=(16,)
    )
    section = comparison.section(find_results([tmp_path]))
    assert section is not None
    (loss,) = [block for block in section.blocks if isinstance(block, Figure) and "-loss" in block.name]
    assert "16 workers" in loss.title
    assert loss.notes == (
        "dbp: at most 0 from the loss of torchrec",
        "nestpipe: at most 2.0e-03 from the loss of torchrec",
    )


def test_trends_follow_commits_of_one_environment_in_time() -> None:
    head = ("torchrec", "nestpipe"), (2,)
    other = {"cpu": "another", "cores": 2, "memory_bytes": 1, "os": "Linux"}
    runs = [
        sample.invocation(sample.run_rows("1", *head, commit="b" * 40)),
        sample.invocation(sample.run_rows("2", *head, commit="a" * 40)),
        sample.invocation(sample.run_rows("3", *head, commit="b" * 40)),
        sample.invocation(sample.run_rows("4", *head, commit="c" * 40, machine=other)),
        sample.invocation(sample.run_rows("5", *head, commit="d" * 40, seed=1)),
    ]
    (table,) = tables(trends.section(results(*runs)))
    assert column(table, "commit") == ["bbbbbbb", "bbbbbbb", "aaaaaaa", "aaaaaaa"]
    assert column(table, "speedup") == ["1.00x", f"{22 / 12:.2f}x"] * 2
    assert trends.section(results(runs[0], runs[2])) is None


def test_a_training_is_a_mean_over_seeds_of_the_last_epoch(tmp_path: Path) -> None:
    sample.write_training(tmp_path, "20261130T000000Z-000001", seeds=(0, 1, 2), num_epochs=3)
    section = training.section(find_results([tmp_path]))
    (table,) = tables(section)
    # Seeds 0, 1, 2 after epoch 3: 0.03, 0.04, 0.05 for the first method; their deviation is 0.01.
    assert column(table, "hr@10") == ["0.0400 ± 0.0058", "0.0500 ± 0.0058"]
    assert column(table, "epoch") == ["3", "3"]
    assert section is not None
    assert [block.name for block in section.blocks if isinstance(block, Figure)] == [
        f"train-20261130t000000z-000001-2-{metric}" for metric in ("loss", "hr-10")
    ]


def test_a_reproduction_is_shown_as_it_was_printed(tmp_path: Path) -> None:
    sample.write_reproduction(tmp_path, "table2")
    found = find_results([tmp_path])
    section = reproduction.section(found)
    (table,) = tables(section)
    assert table.caption.startswith("table2: Step latency, 1,536 workers (simulated, ")
    nestpipe = dict(zip(table.columns, table.rows[3], strict=True))
    assert nestpipe["method"] == "nestpipe"
    assert nestpipe["speedup paper"] == "3.06x [T]"
    assert nestpipe["step ms paper"] == "1895.98 [T]"
    assert nestpipe["step ms error"] == "+0.8%"
    torchrec = dict(zip(table.columns, table.rows[0], strict=True))
    assert torchrec["step ms error"] == "+0.0%*"

    (hidden,) = tables(reproduction.communication(found))
    values = {row[0]: row for row in hidden.rows}
    total, exposed = (float(text) for text in values["nestpipe"][2:4])
    # Of eight micro-batches the first exchange and the last reduce are exposed: an eighth, and latency.
    assert exposed / total == pytest.approx(1 / 8, abs=0.01)
    assert values["torchrec"][4] == "0.0%"


def test_half_a_reproduction_is_not_drawn_and_an_unknown_item_is_newer(tmp_path: Path) -> None:
    sample.write_reproduction(tmp_path, "table2")
    whole = find_results([tmp_path]).of("reproduce")[0]
    section = reproduction.section(results(replace(whole, rows=whole.rows[:-5])))
    assert section is not None
    (table,) = section.blocks
    assert isinstance(table, Table)
    assert any("5 cells are missing" in note for note in table.notes)
    renamed = replace(whole, rows=tuple({**row, "item": "table9"} for row in whole.rows))
    with pytest.raises(ValueError, match=r"'table9' is unknown: written by a newer version"):
        reproduction.section(results(renamed))


def test_a_traced_step_is_one_whose_update_has_one_before_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    sample.write_trace_of(path)
    ops = read_trace(path)
    last = max(op.step for op in ops if op.kind == "update")
    kept = [op for op in ops if op.kind != "update" or op.step in (1, last - 1, last)]
    section = timelines.section(Results((), {path: kept}))
    assert section is not None
    chart, busy = section.blocks
    assert isinstance(chart, Timeline)
    assert chart.chart.title == f"nestpipe, 1536 workers, measured step {last} (trace.jsonl)"
    # Of the paper's dense time, 1715 ms, the simulated step hides nearly all communication.
    assert chart.chart.length_ms == pytest.approx(1715, rel=0.15)
    assert isinstance(busy, Table)
    (row,) = busy.rows
    assert float(row[busy.columns.index("compute")]) == pytest.approx(1715, rel=0.25)
    assert timelines.section(Results((), {path: [op for op in kept if op.step != last - 1]})) is not None


def test_the_environment_tells_machines_apart() -> None:
    other = {"cpu": "another", "cores": 64, "memory_bytes": 2**38, "os": "Linux"}
    runs = [
        sample.invocation(sample.run_rows("1", dirty=True)),
        sample.invocation(sample.run_rows("2")),
        sample.invocation(sample.run_rows("3", machine=other)),
    ]
    listed, machines, _ = tables(environment.section(results(*runs)))
    assert column(listed, "run") == ["3", "2", "1"]
    assert column(listed, "environment") == ["B", "A", "A"]
    assert column(listed, "commit") == ["0123456", "0123456", "0123456+"]
    assert column(machines, "memory GiB") == ["16.0", "256.0"]


def test_a_ladder_keeps_flat_and_failed_steps(tmp_path: Path) -> None:
    assert session.LADDER_FILE == LADDER_FILE
    sample.write_ladder(tmp_path / "sweeps" / "ladder")
    section = ladder.section(find_results([tmp_path]))
    (table,) = tables(section)
    assert table.caption == "ladder (measured, 0123456)"
    assert column(table, "step") == ["sync", "overlap", "window"]
    assert column(table, "step ms") == ["105.00 (100.00-110.00)", "84.00 (80.00-88.00)", "81.00"]
    assert column(table, "gain") == ["-", "1.250x", f"{80 / 81:.3f}x"]
    assert column(table, "over the first") == ["-", "1.250x", f"{100 / 81:.3f}x"]
    assert column(table, "verdict") == ["first", "faster", "partly failed"]
    assert table.failed == {2}
    assert table.notes == ("window: LaunchError: rank 1 died",)
    assert section is not None
    assert [block.name for block in section.blocks if isinstance(block, Figure)] == ["ladder-1-2"]


def test_sweeps_and_traces_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("before", "after"):
        sample.write_ladder(tmp_path / folder / "sweeps" / "ladder")
        sample.write_trace_of(tmp_path / folder / "trace.jsonl")
    page = build([tmp_path])
    by_name = {section.name: section for section in page.sections}
    assert [table.caption for table in tables(by_name["ladder"])] == [
        "after/sweeps/ladder (measured, 0123456)",
        "before/sweeps/ladder (measured, 0123456)",
    ]
    assert [figure.title.rpartition(": ")[2] for figure in page.figures()] == [
        "after/sweeps/ladder (measured, 0123456)",
        "before/sweeps/ladder (measured, 0123456)",
    ]
    assert [timeline.chart.title.rpartition(" (")[2] for timeline in page.timelines()] == [
        "after/trace.jsonl)",
        "before/trace.jsonl)",
    ]
    assert [table.caption.split(" (")[1].split(",")[0] for table in tables(by_name["timeline"])] == [
        "after/trace.jsonl",
        "before/trace.jsonl",
    ]
    ids = [figure.name for figure in page.figures()] + [chart.name for chart in page.timelines()]
    assert len(set(ids)) == 4


def test_ids_are_told_apart_where_names_differ_in_what_an_id_cannot_hold(tmp_path: Path) -> None:
    for name in ("a-b.jsonl", "a_b.jsonl"):
        for method in ("dbp-x", "dbp_x"):
            sample.write_trace_of(tmp_path / name, method="dbp", recorded_as=method)
    section = timelines.section(find_results([tmp_path]))
    assert section is not None
    ids = [block.name for block in section.blocks if isinstance(block, Timeline)]
    assert len(set(ids)) == 4


def test_a_sweep_that_was_moved_has_its_folder_beside_its_name(tmp_path: Path) -> None:
    sample.write_ladder(tmp_path / "old")
    (table,) = tables(ladder.section(find_results([tmp_path])))
    assert table.caption == "ladder in old (measured, 0123456)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": 1, "rungs": [', r"ladder\.json: cut short or damaged; start the sweep again"),
        ('{"schema": 99}', r"ladder\.json: schema 99, of another version"),
        ('{"schema": 1, "rungs": [{}], "name": "a"}', r"ladder\.json: not a ladder of `nestpipe sweep`"),
    ],
)
def test_a_bad_ladder_is_named_with_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / LADDER_FILE).write_text(text)
    with pytest.raises(ValueError, match=message):
        ladder.section(find_results([tmp_path]))


def test_claims_carry_their_newest_verdict(tmp_path: Path) -> None:
    sample.write_claims(tmp_path)
    (table,) = tables(claims.section(find_results([tmp_path])))
    verdicts = column(table, "verdict")
    assert verdicts[0].startswith("holds")
    failed = {index for index, verdict in enumerate(verdicts) if verdict.startswith("fails")}
    assert table.failed == failed
    assert len(failed) >= 10
    assert set(column(table, "evidence")) == {"simulated"}
    assert any("more can be had" in note for note in table.notes)
