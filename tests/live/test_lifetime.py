"""A server's start and end as an operator meets them: exit codes, one sentence, a drain that answers what it took."""

from __future__ import annotations

import json
import struct
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from letterwise import Decision, Unavailable

from . import material
from .processes import Server, Spare, run, sentence

pytestmark = pytest.mark.live
BODIES = [material.twenty(material.letters_of(4, year=year), 5) for year in (1991, 1992, 1993)]


def test_terminated_server_answers_what_it_took_and_exits_0(spare: Spare) -> None:
    """SIGTERM while three decisions run and a health watch is open: the watch turns NOT_SERVING, new calls are
    refused, the three are answered with their usual numbers, and the process has ended within ten seconds."""
    server = spare.get()
    with server.client() as client:
        usual = [client.decide(**material.call(body)).answers for body in BODIES]
    watched: list[int] = []
    with grpc.insecure_channel(server.target) as channel, server.client(retry=None) as client:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        streams = [client.decide_stream(**material.call(body)) for body in BODIES]
        assert [next(stream).kind for stream in streams] == ["accepted"] * 3
        server.terminate()
        began = time.monotonic()
        watched.append(next(watch).status)
        refused = threading.Thread(target=_refused, args=(server, errors := []))
        refused.start()
        answers = [{e.answer.id: e.answer for e in stream if e.kind == "answer"} for stream in streams]
        code = server.wait(10)
        seconds = time.monotonic() - began
        refused.join()
    assert watched == [health_pb2.HealthCheckResponse.NOT_SERVING]
    assert answers == usual
    assert [type(error) for error in errors] == [Unavailable]
    assert code == 0
    assert seconds < 10


def _refused(server: Server, errors: list[Exception]) -> None:
    """A call that comes after the drain began."""
    try:
        with server.client(retry=None, timeout_seconds=10) as late:
            answered: Decision = late.decide(**material.call(BODIES[0]))
            errors.append(AssertionError(f"answered with {len(answered.answers)} answers"))
    except Exception as error:
        errors.append(error)


def test_taken_port_is_one_sentence_and_exit_1(server: Server) -> None:
    """A second server on the port ends at once, before it loads anything."""
    port = server.target.rpartition(":")[2]
    began = time.monotonic()
    done = run("serve", "--port", port)
    assert done.returncode == 1
    assert sentence(done) == f"letterwise-service: cannot listen on 127.0.0.1:{port}: Address already in use (--port)"
    assert time.monotonic() - began < 20


def test_missing_model_is_one_sentence_and_exit_2(tmp_path: Path) -> None:
    """A path to nowhere is a wrong setting, and is named."""
    done = run("serve", "--port", "0", "--http-port", "0", "--model", str(tmp_path / "nothing.gguf"))
    assert done.returncode == 2
    assert sentence(done).startswith("letterwise-service: --model '")
    assert "there is no such path" in done.stderr


def test_broken_model_is_one_sentence_and_exit_1(tmp_path: Path) -> None:
    """A file that is no GGUF file is said to be none."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"not a model at all" * 100)
    done = run("serve", "--port", "0", "--http-port", "0", "--model", str(path), "--log-level", "error")
    assert done.returncode == 1
    assert sentence(done).startswith(f"letterwise-service: {path}")


def test_model_that_does_not_fit_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """Four TiB of weights, in a file with as many holes: refused before anything is read."""
    _sparse_model(tmp_path, values=2**40)
    done = run("serve", "--port", "0", "--http-port", "0", "--model", str(tmp_path), "--log-level", "error")
    assert done.returncode == 1
    assert "needs 4096.00 GiB for its weights" in sentence(done)
    assert "GiB is available" in done.stderr


def _sparse_model(folder: Path, values: int) -> None:
    """A model folder whose one tensor has `values` float16 values, none of them written."""
    header = json.dumps({"w": {"dtype": "F16", "shape": [values], "data_offsets": [0, 2 * values]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * values)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_text("{}")
