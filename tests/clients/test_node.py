"""gRPC from outside Python: a Node client whose stubs `@grpc/proto-loader` makes from our proto."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from letterwise.v1 import decision_pb2_grpc
from tests.server import bodies

from .conftest import Served

SCRIPT = Path(__file__).parent / "node"
PROTO = Path(__file__).parents[2] / "proto"
INSTALL_SECONDS = 60


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its packages, in a folder of its own; skipped, with the reason, where they cannot be had."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("no node and npm here")
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(SCRIPT, folder, dirs_exist_ok=True)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=0", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not answer within {INSTALL_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"npm cannot install the client's packages: {done.stderr.splitlines()[:1]}")
    return folder


@pytest.fixture(scope="module")
def told(installed: Path, running: Served) -> dict[str, Any]:
    """What Node was answered, unary and streamed."""
    request = json.dumps(MessageToDict(bodies.ticket(), preserving_proto_field_name=True))
    done = subprocess.run(
        ["node", "decide.js", running.target, str(PROTO)],
        cwd=installed,
        env={**os.environ, "NODE_NO_WARNINGS": "1"},
        input=request,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    answered: dict[str, Any] = json.loads(done.stdout)
    return answered


def test_node_decides_as_python_does(told: dict[str, Any], running: Served) -> None:
    """Every answer, to the last bit, and every skip."""
    with grpc.insecure_channel(running.target) as channel:
        reply = decision_pb2_grpc.DecisionServiceStub(channel).Decide(bodies.ticket())
    assert [answer_of(answer) for answer in told["reply"]["answers"]] == [
        answer_of(MessageToDict(answer, preserving_proto_field_name=True)) for answer in reply.answers
    ]
    assert [skip["question_id"] for skip in told["reply"]["skipped"]] == [skip.question_id for skip in reply.skipped]
    assert told["reply"]["model"] == "scripted"


def test_node_streams_the_same_decision(told: dict[str, Any]) -> None:
    """In the order of the contract, and the union is the unary reply."""
    kinds = [event["event"] for event in told["events"]]
    assert kinds[0] == "accepted"
    assert kinds[-1] == "completed"
    streamed = {event["answer"]["question_id"]: event["answer"] for event in told["events"] if event.get("answer")}
    assert streamed == {answer["question_id"]: answer for answer in told["reply"]["answers"]} != {}


def answer_of(answer: dict[str, Any]) -> list[Any]:
    """The numbers and names of an answer in either library's form of JSON."""
    found: list[Any] = [answer["question_id"], answer["letter_mass"]]
    for kind in ("noul", "choice", "score"):
        if part := answer.get(kind):
            found += [kind, part.get("probability"), part.get("choice"), part.get("score"), part.get("confidence")]
            found += [one["probability"] for one in part.get("probabilities", [])]
    return found
