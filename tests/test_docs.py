"""Commands in README, docs and examples exist as they are written, and every command is in one of them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from baselines import registry as methods
from harness.cli import main
from harness.emulation import profiles
from harness.options import METHOD_HELP, TRAINING_HELP
from tests.conftest import ROOT
from tests.test_house_rules import commands
from workloads import registry as workloads

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/*.md")),
]
FENCE = re.compile(r"^```(bash|sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Of the example package.
EXAMPLE_METHODS, EXAMPLE_SETTINGS = {"replicated"}, {"exchange"}
SETTINGS = {
    *METHOD_HELP,
    *TRAINING_HELP,
    *profiles.field_names(),
    *EXAMPLE_SETTINGS,
    *(setting.name for item in workloads.describe() for setting in item.settings),
}


def written_commands(page: Path) -> Iterator[list[str]]:
    """The arguments of every `nestpipe` in a page's blocks of shell, whatever starts it."""
    for _, block in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if re.fullmatch(r"[|&;<>]+", word):
                    if "nestpipe" in words:
                        yield words[words.index("nestpipe") + 1 :]
                    words = []
                else:
                    words.append(word)


def check(arguments: list[str]) -> None:
    """Raise a click exception, or fail, for a command, option or value that does not exist."""
    command: click.Command = main
    context = click.Context(main, info_name="nestpipe")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, found, arguments = command.resolve_command(context, arguments)
        assert name is not None
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
    values, _, _ = command.make_parser(context).parse_args(list(arguments))
    for parameter in command.params:
        for value in _given(values.get(parameter.name or "")):
            _check_value(parameter, value)
        if isinstance(parameter, click.Argument) and parameter.required:
            assert _given(values.get(parameter.name or "")), parameter.name


def _given(value: object) -> list[str]:
    values = value if isinstance(value, list | tuple) else [value]
    return [text for text in values if isinstance(text, str)]


def _check_value(parameter: click.Parameter, value: str) -> None:
    if isinstance(parameter.type, click.Choice):
        assert value in parameter.type.choices, f"{parameter.name}: {value}"
    if parameter.name == "pairs":
        key = value.partition("=")[0].rpartition(".")[2]
        assert key in SETTINGS, f"--set {key}"
    if parameter.name == "methods" and not value.endswith(".py"):
        assert value in {*methods.names(), *EXAMPLE_METHODS}, f"method {value}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_as_they_are_written(page: Path) -> None:
    for arguments in written_commands(page):
        try:
            check(arguments)
        except (click.ClickException, AssertionError) as error:
            pytest.fail(f"{page.name}: nestpipe {' '.join(arguments)}: {error}")


@pytest.mark.parametrize(
    "line",
    [
        "nestpipe rum",
        "nestpipe run --step 3",
        "torchrun --nproc-per-node 2 --no-python nestpipe run torchrek",
        "nestpipe run torchrec --set batchsize=3 | tail",
        "nestpipe reproduce table5",
        "nestpipe verify",
    ],
)
def test_a_command_that_does_not_exist_is_seen(tmp_path: Path, line: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"text\n```bash\ncd here && {line}\n```\n")
    (arguments,) = written_commands(page)
    with pytest.raises((click.ClickException, AssertionError)):
        check(arguments)


def test_readme_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    names = [" ".join(path) for path, command in commands(main) if not isinstance(command, click.Group)]
    assert [name for name in names if f"nestpipe {name}" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


def modules_of_the_tree() -> dict[str, str]:
    """What README says of each module, by its path."""
    found, folder = {}, ""
    for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines():
        if re.match(r"[\w./-]+/( |$)", line):
            folder = line.split()[0]
        elif match := re.match(r" {4}(\w+\.py) +(.+)", line):
            found[folder + match[1]] = match[2]
    return found


def test_the_tree_has_every_module_with_its_first_sentence() -> None:
    tree = modules_of_the_tree()
    for top in ("nestpipe", "baselines", "workloads", "harness", "scripts"):
        own = {f"{p.relative_to(ROOT)}" for p in (ROOT / top).rglob("*.py") if p.name != "__init__.py"}
        own |= {path for path in tree if path.startswith(f"{top}/") and path.endswith("__init__.py")}
        assert own == {path for path in tree if path.startswith(f"{top}/")}
        for path in own:
            docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
            assert docstring.startswith(tree[path]), path
