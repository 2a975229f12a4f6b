"""The README does what it says: its marked blocks run, its tables are the program's, its links lead somewhere."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from letterwise_service import config
from letterwise_service.config import EngineConfig, ServerConfig

from .live.processes import Server
from .server.real import free_port

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- runnable -->\n```(\w+)\n(.*?)```\n", README, re.DOTALL)
COMMANDS = [
    line.partition("  #")[0].strip() for kind, block in BLOCKS if kind == "sh" for line in block.splitlines() if line
]
PROGRAMS = [block for kind, block in BLOCKS if kind == "python"]
DEFAULT_TARGET, DEFAULT_URL = "localhost:50051", "http://localhost:8080"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the embedded model, where the README has its default one."""
    server = Server(tmp_path_factory.mktemp("readme"), "--http-port", str(free_port()))
    yield server
    server.close()


def at(server: Server, text: str) -> str:
    """A block of the README, or a line of one, that asks this server."""
    assert DEFAULT_TARGET in text or DEFAULT_URL in text
    return text.replace(DEFAULT_TARGET, server.target).replace(DEFAULT_URL, server.url)


def run(command: list[str]) -> str:
    """What a command prints; it must succeed and complain of nothing."""
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_readme_has_runnable_blocks_and_marks_all_python() -> None:
    """Every Python block is marked, so that none escapes these tests."""
    assert len(PROGRAMS) == README.count("```python") >= 5
    assert len(COMMANDS) >= 5


@pytest.mark.live
@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_python_block_runs(program: str, server: Server) -> None:
    """It prints something, and ends well, against a server with the embedded model."""
    assert run([sys.executable, "-c", at(server, program)])


@pytest.mark.live
@pytest.mark.parametrize("command", COMMANDS)
def test_shell_command_runs(command: str, server: Server) -> None:
    """Each line of the marked shell blocks, as the installed command of that name; `curl` is the machine's own."""
    name, *arguments = shlex.split(at(server, command))
    if name == "curl" and shutil.which(name) is None:
        pytest.skip("no curl here")
    installed = Path(sys.executable).with_name(name)
    assert run([str(installed) if installed.exists() else name, *arguments])


def shown(default: object) -> str:
    """A default as the table has it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return "" if default in (None, ()) else f"{default:g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize(
    "field",
    [f for each in (EngineConfig, ServerConfig) for f in dataclasses.fields(each)],
    ids=lambda field: field.name,
)
def test_configuration_table_has_every_setting_with_its_default(field: dataclasses.Field[object]) -> None:
    """A row with the flag, the variable and the default that the program has."""
    cells = [f"`{config.flag_of(field.name)}`", f"`{config.variable_of(field.name)}`", shown(field.default)]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in README.splitlines() if line.startswith("| `--")]
    assert cells in rows


def test_configuration_table_has_nothing_else() -> None:
    """No row for a setting that is gone."""
    count = sum(len(dataclasses.fields(each)) for each in (EngineConfig, ServerConfig))
    assert README.count("| `--") == count


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_named_files_exist(document: str) -> None:
    """Every relative link of a document leads to a file, and every anchor of its own to a heading."""
    text = (ROOT / document).read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("#"):
            assert link[1:] in headings, link
        elif not link.startswith("https://"):
            assert (ROOT / link.partition("#")[0]).exists(), link


def test_architecture_names_every_module_and_only_those_that_exist() -> None:
    """One line per module; a module that comes or goes is noticed."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([\w/]+\.py)` \|", text, re.MULTILINE))
    roots = (ROOT / "client" / "letterwise", ROOT / "service" / "letterwise_service")
    present = {
        path.relative_to(root.parent).as_posix()
        for root in roots
        for path in root.rglob("*.py")
        if path.name != "__init__.py" and "v1" not in path.parts
    }
    assert named == present
