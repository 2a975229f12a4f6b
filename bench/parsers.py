"""The parsers of both doors under coverage-guided bytes: `python -m bench.parsers [--seconds 60] [--seed S]`.

What has no model and no server behind it: JSON bodies, packed bodies, protobuf messages. Each ends in a request or in
an error of ours. Needs the `atheris` package, which guides the bytes by the branches that they take. It ends at the
first input that raises anything else, with its traceback, or that takes too long or too much memory.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

_SEEDS = 300
_LIMITS = ("-timeout=10", "-rss_limit_mb=2048", "-max_len=20000", "-print_final_stats=1", "-verbosity=0")
_LIMIT_BYTES = 2**16


def _targets() -> list[Callable[[bytes], object]]:
    """One per parser, each from bytes; imported here, so that atheris sees their branches."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["letterwise_service"]):
        from letterwise.v1 import chat_pb2
        from letterwise.v1 import decision_pb2 as pb
        from letterwise_service.config import EngineConfig
        from letterwise_service.method import jev, openai
        from letterwise_service.server import chat_messages, requests
        from letterwise_service.server.http_bodies import unpack
    config = EngineConfig()
    return [
        jev.parse_body,
        openai.parse_body,
        jev.parse_prewarm,
        lambda data: unpack(data, "gzip", _LIMIT_BYTES),
        lambda data: unpack(data, "zstd", _LIMIT_BYTES),
        lambda data: requests.decision_of(pb.DecideRequest.FromString(data), config),
        lambda data: requests.prewarm_of(pb.PrewarmRequest.FromString(data)),
        lambda data: chat_messages.request_of(chat_pb2.ChatRequest.FromString(data), config),
    ]


def _seeds() -> list[bytes]:
    """The first byte chooses the parser; what follows is near to what it takes."""
    from letterwise.v1 import chat_pb2
    from letterwise.v1 import decision_pb2 as pb

    from . import mutant_bodies, mutant_messages

    makes: list[Callable[[Random], bytes]] = [
        lambda draw: mutant_bodies.json_body(draw, "/v1/systemone"),
        lambda draw: mutant_bodies.json_body(draw, "/v1/decisions"),
        lambda draw: mutant_bodies.json_body(draw, "/v1/prewarm"),
        lambda draw: mutant_bodies.packed(draw, b'{"state": "s"}', "gzip"),
        lambda draw: mutant_bodies.packed(draw, b'{"state": "s"}', "zstd"),
        *(
            lambda draw, kind=kind.DESCRIPTOR: mutant_messages.message(draw, kind)
            for kind in (pb.DecideRequest, pb.PrewarmRequest, chat_pb2.ChatRequest)
        ),
    ]
    pairs = ((number % len(makes), Random(number)) for number in range(_SEEDS))
    return [bytes((place,)) + makes[place](draw)[:10_000] for place, draw in pairs]


def _run(options: list[str]) -> None:
    """Never returns: atheris ends the process."""
    from google.protobuf.message import DecodeError
    from starlette.exceptions import HTTPException

    atheris: Any = importlib.import_module("atheris")
    targets = _targets()
    from letterwise_service.errors import LetterwiseError

    def one(data: bytes) -> None:
        if not data:
            return
        try:
            targets[data[0] % len(targets)](data[1:])
        except (LetterwiseError, HTTPException, DecodeError):
            return

    atheris.Setup([sys.argv[0], *options], one)
    atheris.Fuzz()


def main() -> None:
    parser: Any = argparse.ArgumentParser(prog="python -m bench.parsers", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other bytes (default 1)")
    parser.add_argument("--inside", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside is not None:
        _run(given.inside)
    if importlib.util.find_spec("atheris") is None:
        sys.exit("bench.parsers needs the atheris package: pip install atheris")
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(_seeds()):
            Path(folder, f"{number:04}").write_bytes(seed)
        bounds = (f"-max_total_time={given.seconds}", f"-seed={given.seed}", f"-artifact_prefix={folder}/")
        command = [sys.executable, "-m", "bench.parsers", "--inside", folder, *bounds, *_LIMITS]
        sys.exit(subprocess.run(command, check=False).returncode)


if __name__ == "__main__":
    main()
