"""The package as installed: its public names, and that grpcio and protobuf are all it needs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

import letterwise
from letterwise import answers, chat, events, info, serving
from letterwise.v1 import chat_pb2, decision_pb2, diagnostics_pb2, info_pb2, serving_pb2

PUBLIC = """
Aborted Accepted AccessError Adapter AlreadyExists Answer Answered AsyncChatStream AsyncClient AsyncDecisionStream
BadReply Build Calibration Cancelled ChatDelta ChatEvent ChatFinished ChatMessage ChatReply ChatStarted ChatStream
ChatToken Choice ChoiceAnswer Client Completed DataLoss DeadlineExceeded Decision DecisionStream Diagnostics Event
Exhausted Info Internal InvalidRequest LetterwiseError Limits Model ModelUnsuitable NotFound Noul NoulAnswer Option
PermissionDenied PrefixDiagnostics PrefixProgress PrefixStore Prewarmed Question RequestError Retry Score ScoreAnswer
ServerFault Skipped Tls TooLong TryLater Unauthenticated Unavailable Unknown Unsupported Usage Violation WasSkipped
gather
"""

# Runs a program with every package refused but the base install's and the standard library.
BARE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        allowed = top in sys.stdlib_module_names or top in ("letterwise", "grpc", "google", "typing_extensions")
        if not allowed or name.startswith(("google.rpc", "google.api", "grpc_status")):
            raise ModuleNotFoundError(f"not in the base install: {name}", name=name)
sys.meta_path.insert(0, Refuse())
for name in [each for each in sys.modules if each.split(".")[0] in ("rich", "google")]:
    del sys.modules[name]
from letterwise.cli import main
import letterwise
try:
    letterwise.Client(sys.argv[1], retry=None).prewarm("x")
except letterwise.TooLong as error:
    print(error.tokens, error.limit_tokens)
sys.exit(main(["info", "--server", sys.argv[1]]))
"""


def test_public_names_are_pinned() -> None:
    """The public list changes only on purpose, and every name in it is there."""
    assert letterwise.__all__ == PUBLIC.split()
    assert all(hasattr(letterwise, name) for name in letterwise.__all__)


def test_base_install_is_enough(server: Any, refusal: Any) -> None:
    """Calls, rich errors and the command work where only grpcio and protobuf are installed."""
    import grpc

    from letterwise.v1 import errors_pb2

    limit = errors_pb2.TokenLimit(tokens=9, limit_tokens=8)
    server.servicer.refusals = [refusal(grpc.StatusCode.OUT_OF_RANGE, details=(limit,))]
    bare = subprocess.run(
        [sys.executable, "-c", BARE, server.target], capture_output=True, text=True, check=False, timeout=60
    )
    assert (bare.returncode, bare.stderr) == (0, "")
    assert bare.stdout.startswith("9 8\nmodel\n")


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (answers.Usage, decision_pb2.Usage),
        (answers.Usage, chat_pb2.ChatUsage),
        (chat.ChatMessage, chat_pb2.ChatMessage),
        (chat.ChatStarted, chat_pb2.ChatStarted),
        (chat.ChatToken, chat_pb2.ChatToken),
        (chat.ChatDelta, chat_pb2.ChatDelta),
        (chat.ChatFinished, chat_pb2.ChatFinished),
        (serving.Adapter, serving_pb2.Adapter),
        (answers.PrefixDiagnostics, diagnostics_pb2.PrefixDiagnostics),
        (answers.Diagnostics, diagnostics_pb2.Diagnostics),
        (answers.Prewarmed, decision_pb2.PrewarmResponse),
        (events.Accepted, decision_pb2.DecisionAccepted),
        (events.PrefixProgress, decision_pb2.PrefixProgress),
        (events.Completed, decision_pb2.DecisionCompleted),
        (info.Info, info_pb2.GetInfoResponse),
        (info.Model, info_pb2.Model),
        (info.Limits, info_pb2.Limits),
        (info.Calibration, info_pb2.Calibration),
        (info.PrefixStore, info_pb2.PrefixStore),
        (info.Build, info_pb2.Build),
    ],
)
def test_plain_classes_have_the_fields_of_their_messages(plain: Any, message: Any) -> None:
    """A field that the contract gains fails here until the client has it."""
    own = {each.name for each in fields(plain)} - {"kind"}
    assert own == {each.name for each in message.DESCRIPTOR.fields}
