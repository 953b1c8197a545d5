"""The command `nestpipe kernels bench`: every op, its bytes, and no speedup for a wrong result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from harness.cli import main
from harness.kernels import bench, cases
from harness.kernels.bench import KernelTiming
from harness.kernels.cases import OPS, Case, Size, build_case

SMALL = ["--rows", "300", "--ids", "100", "--calls", "3", "--dim", "16"]
CPU = torch.device("cpu")


def test_every_op_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "COPY_BYTES_CPU", 1 << 16)
    out = tmp_path / "folder" / "kernels.json"
    result = CliRunner().invoke(main, ["kernels", "bench", *SMALL, "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert document == json.loads(out.read_text())
    plain = {row["op"]: row for row in document["kernels"] if row["impl"] == "reference"}
    assert tuple(plain) == OPS
    for row in document["kernels"]:
        assert len(row["times_ms"]) == 3
        assert row["is_correct"]
        assert row["copy_gb_s"] > 0
    assert plain["gather"]["num_bytes"] == 100 * (8 + 2 * 16 * 4)
    if not torch.cuda.is_available():
        assert "Triton kernels need a CUDA device" in document["why_no_triton"]
        assert "Plain versions only" in result.stdout
        assert all(row["impl"] != "triton" for row in document["kernels"])


def test_a_document_is_overwritten_by_force_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(*arguments: object) -> list[KernelTiming]:
        measured.append(arguments)
        return [KernelTiming("gather", "reference", "cpu", "float32", 1, 1, 1, 8, (1.0,) * 3, 4.0, True, 1.0)]

    monkeypatch.setattr(bench, "measure", measure)
    out = tmp_path / "kernels.json"
    out.write_text("mine")
    arguments = ["kernels", "bench", "gather", *SMALL, "--out", str(out)]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == 1
    assert f"Error: {out} exists; --force overwrites it" in refused.stderr
    assert (out.read_text(), measured) == ("mine", [])
    assert CliRunner().invoke(main, [*arguments, "--force"]).exit_code == 0
    assert json.loads(out.read_text())["kernels"][0]["op"] == "gather"


def test_an_unknown_op_gets_the_nearest_name() -> None:
    result = CliRunner().invoke(main, ["kernels", "bench", "gathr"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: unknown op 'gathr'")
    assert "gather" in result.stderr


@pytest.mark.parametrize("op", OPS)
def test_a_case_repeats_itself(op: str) -> None:
    """Two builds give the same result, or two implementations could not be compared."""
    size = Size(70, 63, 12, torch.float32)
    first, second = (build_case(op, size, CPU).call("reference") for _ in range(2))
    assert torch.equal(first, second)
    assert first.numel()


def test_a_wrong_result_has_no_speedup(monkeypatch: pytest.MonkeyPatch) -> None:
    size = Size(30, 20, 8, torch.float32)
    right = build_case("gather", size, CPU).call("reference").clone()

    def build(size: Size, source: object) -> Case:
        return Case("gather", 1, lambda impl: right, fbgemm=lambda: right + 0.01)

    monkeypatch.setitem(cases._BUILDERS, "gather", build)
    monkeypatch.setattr(bench, "COPY_BYTES_CPU", 1 << 16)
    plain, other = bench.measure([("gather", size)], CPU, 3)
    assert (plain.is_correct, plain.speedup) == (True, 1.0)
    assert (other.impl, other.is_correct, other.speedup) == ("fbgemm", False, None)
    result = CliRunner().invoke(main, ["kernels", "bench", "gather", *SMALL])
    assert result.exit_code == 1
    assert "wrong result" in result.stdout


def test_shares_are_of_the_copy() -> None:
    timing = KernelTiming(
        "gather", "reference", "cpu", "float32", 1, 1, 1, 6_000_000, (3.0, 2.0, 9.0), 4.0, True, 1.0
    )
    assert timing.ms == 3.0
    assert timing.gb_s == pytest.approx(2.0)
    assert timing.share == pytest.approx(0.5)
