"""The commands of the simulator, as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from harness.cli import main
from harness.op_trace import traced, write_trace
from harness.simulation.chrome import chrome_trace
from harness.simulation.costs import Conditions
from harness.simulation.gantt import chart_of, render
from harness.simulation.methods import find
from harness.simulation.paper import paper_model
from harness.simulation.predict import steady_timeline
from nestpipe.schedule import Lane
from nestpipe.trace import OpEvent


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def last_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.output.splitlines()[-1])


def events_of(name: str, num_steps: int = 3) -> list[OpEvent]:
    method, model = find(name), paper_model()
    times = model.times(method.schedule, Conditions(1536))
    return steady_timeline(method.schedule, times, num_steps, 30.0).events()


def test_simulate_compares_methods_at_every_size() -> None:
    result = invoke("simulate", "torchrec", "nestpipe", "--workers", "128,1536", "--json")
    found = last_json(result)
    assert found["cost"] == "paper"
    steps = {(run["method"], run["num_workers"]): run["step_ms"] for run in found["runs"]}
    assert set(steps) == {(m, w) for m in ("torchrec", "nestpipe") for w in (128, 1536)}
    assert steps["torchrec", 1536] == pytest.approx(5793.83)
    assert "3.03x" in result.output


def test_micro_batches_and_batch_size_count() -> None:
    def step_ms(*options: str) -> float:
        return last_json(invoke("simulate", "nestpipe", "--workers", "512", "--json", *options))["runs"][0][
            "step_ms"
        ]

    assert step_ms("--micro-batches", "2") > step_ms() > step_ms("--micro-batches", "1,2,4,4,4,4,2,1")
    assert step_ms("--batch-size", "256") < 0.6 * step_ms()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["simulate", "nestpip"], "did you mean 'nestpipe'"),
        (["simulate", "nestpipe", "--cost", "papr"], "unknown cost model 'papr'"),
        (["simulate", "nestpipe", "--workers", "0"], "at least 1"),
        (["simulate", "nestpipe", "--micro-batches", "x"], "--micro-batches"),
        (["simulate", "missing.py"], "missing.py"),
        (["map", "--x", "com"], "did you mean 'comm'"),
        (["map", "--x", "comm", "--y", "comm"], "must differ"),
        (["schedule", "show", "dpb"], "did you mean 'dbp'"),
        (["schedule", "show", "dbp", "--out", "chart.txt"], "must end in .svg"),
        (["schedule", "show", "dbp", "--trace", "missing.jsonl"], "no trace missing.jsonl"),
    ],
)
def test_mistakes_get_a_message(arguments: list[str], message: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "Error: " in result.output
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.timed
def test_everything_is_there_in_two_seconds_without_torch() -> None:
    code = (
        "import sys\nfrom harness.cli import main\n"
        "main(['simulate', 'all'], standalone_mode=False)\nprint(*sys.modules)"
    )
    durations = []
    for _ in range(2):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        durations.append(time.perf_counter() - began)
    assert not {"torch", "torchrec", "pandas"} & set(done.stdout.splitlines()[-1].split())
    assert done.stdout.count("nestpipe-2d") == 5
    assert min(durations) < 2


def test_a_simulated_reproduction_draws_when_asked(tmp_path: Path) -> None:
    plain, drawn = tmp_path / "plain", tmp_path / "drawn"
    invoke("reproduce", "table4", "--evidence", "simulated", "--out", str(plain))
    invoke("reproduce", "table4", "--evidence", "simulated", "--figures", "--out", str(drawn))
    assert not list(plain.glob("*.svg"))
    assert {path.suffix for path in drawn.glob("table4.*")} == {".png", ".svg"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["schedule", "show", "nestpipe"],
        ["schedule", "export", "nestpipe", "--out", "trace.json"],
        ["map", "--x", "n", "--y", "group", "--out", "maps"],
        ["reproduce", "table4", "--evidence", "simulated", "--out", "tables"],
        ["verify", "nestpipe"],
    ],
)
def test_no_command_imports_torch(arguments: list[str], tmp_path: Path, repository: Path) -> None:
    code = (
        f"import sys\nsys.path.insert(0, {str(repository)!r})\nfrom harness.cli import main\n"
        f"main({arguments!r}, standalone_mode=False)\nprint(*sys.modules)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert not {"torch", "torchrec"} & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(("x", "y"), [("comm", "lookup"), ("n", "zipf"), ("overlap", "group")])
def test_map_draws_every_pair_of_axes(x: str, y: str, tmp_path: Path) -> None:
    found = last_json(invoke("map", "--x", x, "--y", y, "--out", str(tmp_path), "--json"))
    assert {path.name for path in tmp_path.iterdir()} == {f"nestpipe-{x}-{y}.png", f"nestpipe-{x}-{y}.svg"}
    assert len(found["speedup"]) == len(found["y"])
    assert {len(row) for row in found["speedup"]} == {len(found["x"])}


def test_map_shows_where_pipelining_loses(tmp_path: Path) -> None:
    found = last_json(invoke("map", "--out", str(tmp_path), "--json"))
    corner = found["speedup"][0][0]
    assert found["x"][0] == found["y"][0] == 0.0
    assert corner < 1, "with nothing to hide, splitting only costs"
    assert max(map(max, found["speedup"])) > 1.5


def test_a_chart_is_one_step_and_lanes_do_not_overlap() -> None:
    events = events_of("nestpipe")
    last = max(event.op.step for event in events if event.op.kind == "update")
    chart = chart_of(events, last, "nestpipe")
    assert chart.length_ms == pytest.approx(1910.74, abs=0.01)
    for lane in Lane:
        bars = chart.lane(lane)
        assert all(0 <= bar.begin_ms < bar.end_ms <= chart.length_ms + 1e-6 for bar in bars)
        # Two transfers may share the moment in which the earlier one's latency passes.
        assert all(a.end_ms <= b.begin_ms + 1e-6 for a, b in pairwise(bars))
    text = render(chart, 60).plain.splitlines()
    assert len(text) == 1 + sum(bool(chart.lane(lane)) for lane in Lane)
    assert {len(line) for line in text[1:]} == {60 + 9 + 5}
    with pytest.raises(ValueError, match="no step 99"):
        chart_of(events, 99, "nestpipe")


def test_show_draws_the_prediction_above_the_measurement(tmp_path: Path) -> None:
    trace, picture = tmp_path / "trace.jsonl", tmp_path / "chart.svg"
    write_trace(trace, traced(events_of("dbp", 6), method="dbp", workers=4, rank=0, batch_size=8))
    result = invoke("schedule", "show", "dbp", "--trace", str(trace), "--out", str(picture))
    assert result.exit_code == 0, result.output
    assert result.output.index("4 workers, predicted") < result.output.index("4 workers, measured step")
    assert "<svg" in picture.read_text()
    missing = invoke("schedule", "show", "nestpipe", "--trace", str(trace))
    assert missing.exit_code == 1
    assert "no method 'nestpipe'" in missing.output


def test_export_writes_a_chrome_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    result = invoke("schedule", "export", "nestpipe", "--micro-batches", "2", "--out", str(path))
    assert result.exit_code == 0, result.output
    entries = json.loads(path.read_text())["traceEvents"]
    spans = [entry for entry in entries if entry["ph"] == "X"]
    assert all(entry["dur"] >= 0 and {"name", "ts", "pid", "tid", "cat"} <= set(entry) for entry in spans)
    names = {entry["args"]["name"] for entry in entries if entry["name"] == "thread_name"}
    assert names == {*(lane.value for lane in Lane), "transfers"}
    step = max(entry["args"]["step"] for entry in spans if entry["name"].startswith("update"))
    assert f"compute({step}, 1)" in {entry["name"] for entry in spans}


@pytest.mark.parametrize(("command", "name"), [("show", "chart.svg"), ("export", "trace.json")])
def test_a_file_is_overwritten_by_force_alone(command: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("mine")
    arguments = ["schedule", command, "dbp", "--out", str(path)]
    refused = invoke(*arguments)
    assert refused.exit_code == 1
    assert refused.output == f"Error: {path} exists; --force overwrites it, or name another file\n"
    assert path.read_text() == "mine"
    assert invoke(*arguments, "--force").exit_code == 0
    assert len(path.read_text()) > 1000


def test_a_transfer_is_shown_while_issued_and_while_under_way() -> None:
    spans = [entry for entry in chrome_trace(events_of("nestpipe"), "p")["traceEvents"] if entry["ph"] == "X"]
    own = [entry for entry in spans if entry["name"] == "exchange(3, 1)"]
    assert len(own) == 2
    assert len({entry["tid"] for entry in own}) == 2
