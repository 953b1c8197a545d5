"""The command `nestpipe doctor`: what is fine, what is only absent, and what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from baselines import registry
from harness import doctor
from harness.cli import main
from harness.doctor import Finding, examine


def of_topic(topic: str, findings: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings if finding.topic == topic}


def test_this_machine_is_well() -> None:
    result = CliRunner().invoke(main, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout.splitlines()[-1])
    assert list(document) == ["is_well", "machine", "versions", "findings"]
    assert document["is_well"]
    assert document["versions"]["torch"] == torch.__version__
    found = {(finding["topic"], finding["subject"]): finding for finding in document["findings"]}
    assert found["process groups", "gloo"]["status"] == "runs"
    assert {subject for topic, subject in found if topic == "methods"} == set(registry.names())


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_what_is_absent_is_named_with_its_reason() -> None:
    findings = examine()
    triton = of_topic("kernels", findings)["triton"]
    assert triton.status == "absent"
    assert "need a CUDA device" in triton.detail
    assert of_topic("devices", findings)["accelerator"].status == "absent"
    assert all(finding.status != "broken" for finding in findings)


def test_pins_are_compared(tmp_path: Path) -> None:
    names = ("cpu.txt", "cuda.txt")
    for name in names:
        (tmp_path / name).write_text(
            f"# pinned\nclick=={version('click')}\nrich==0.1  # old\nno-such-thing==1\n"
        )
    (pins,) = [f for f in examine(tmp_path) if f.subject.startswith("pins")]
    assert pins.status == "differs"
    assert pins.detail == f"rich {version('rich')} instead of 0.1; no-such-thing absent instead of 1"
    for name in names:
        (tmp_path / name).write_text(f"click=={version('click')}\n")
    (pins,) = [f for f in examine(tmp_path) if f.subject.startswith("pins")]
    assert (pins.status, pins.detail) == ("runs", "all 1 as pinned")


def test_a_broken_library_is_exit_code_one(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = doctor.importlib.import_module

    def fail(name: str) -> Any:
        if name == "fbgemm_gpu":
            raise OSError("undefined symbol\nof another torch")
        return imported(name)

    monkeypatch.setattr(doctor.importlib, "import_module", fail)
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 1
    assert "  broken  fbgemm_gpu: cannot be imported: OSError: undefined symbol\n" in result.stdout


def test_unmet_requirements_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["torch<1", "no-such-thing>=2", "dev-only==1; extra == 'dev'", "click>=8"]
    monkeypatch.setattr(doctor, "requires", lambda _: wanted)

    def details() -> Iterator[str]:
        return (f.detail for f in examine() if f.topic == "packages" and f.status == "broken")

    assert list(details()) == [
        f"torch<1 is required, {torch.__version__} is installed",
        "no-such-thing>=2 is not installed",
    ]


@pytest.mark.parametrize(
    ("copy", "status", "detail"),
    [
        (lambda source, _, target, __, impl: target.copy_(source), "runs", version("triton")),
        (lambda *rows, impl: None, "broken", "came out otherwise"),
        (lambda *rows, impl: 1 / 0, "broken", "the first kernel fails: "),
    ],
)
def test_a_kernel_is_launched_before_kernels_are_said_to_run(
    monkeypatch: pytest.MonkeyPatch, copy: Callable[..., object], status: str, detail: str
) -> None:
    monkeypatch.setattr(doctor, "why_not", lambda device: "")
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(doctor, "copy_rows", copy)
    found = {finding.subject: finding for finding in doctor._kernels()}["triton"]
    assert found.status == status
    assert detail in found.detail
