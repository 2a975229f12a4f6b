"""Writes the Python stubs of the contract: `python proto/generate.py [--out DIR]`.

Owns the versions of the generators. They live in a virtual environment of their own, kept in the user's cache,
because generated code demands at least the protobuf that it was made with, and the oldest one that we allow is older
than the one that a developer has installed. The proto path equals the package path, so imports need no repair.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

PROTO = Path(__file__).resolve().parent
CLIENT = PROTO.parent / "client"
# grpcio-tools fixes what the generated code demands at run time: grpcio 1.78 and protobuf 6.31.1.
TOOLS = ("grpcio-tools==1.78.0", "mypy-protobuf==5.1.0", "protobuf==6.33.6", "setuptools<82")


class ToolsUnavailable(Exception):
    """The generators could not be installed; the message is pip's."""


def install_tools(cache: Path) -> Path:
    """The interpreter of an environment that holds TOOLS; made on the first call."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    home = cache / "-".join(["stubs", version, *(tool.translate(str.maketrans("=<", "--")) for tool in TOOLS)])
    python = home / "bin" / "python"
    installed = home / "installed"
    if not installed.exists():
        venv.create(home, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS]
        outcome = subprocess.run(pip, capture_output=True, text=True, check=False)
        if outcome.returncode != 0:
            raise ToolsUnavailable(outcome.stderr.strip())
        installed.touch()
    return python


def generate(out: Path, python: Path) -> list[Path]:
    """Writes the stubs of every proto file under `out`, and returns their paths."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    services = [path for path in sources if "\nservice " in (PROTO / path).read_text()]
    protoc = [str(python), "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    # protoc finds its plugins on the path
    environment = {**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run([*protoc, f"--python_out={out}", f"--pyi_out={out}", *sources], check=True, env=environment)
    subprocess.run(
        [*protoc, f"--grpc_python_out={out}", f"--mypy_grpc_out={out}", *services], check=True, env=environment
    )
    return sorted(path for path in out.rglob("*_pb2*") if path.suffix in (".py", ".pyi"))


def cache_folder() -> Path:
    """Where the generators' environment is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "letterwise"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the Python stubs of the contract.")
    parser.add_argument("--out", type=Path, default=CLIENT, help="folder of the package (default: client/)")
    out = parser.parse_args().out
    try:
        written = generate(out, install_tools(cache_folder()))
    except ToolsUnavailable as problem:
        print(f"The generators could not be installed: {problem}", file=sys.stderr)
        return 1
    print(f"{len(written)} files under {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
