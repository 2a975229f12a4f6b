"""Failed calls become one tree of errors, and no gRPC type escapes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2

import letterwise
from letterwise import AsyncClient, Client, LetterwiseError, Noul, Retry, errors
from letterwise.channel import channel_options, service_config
from letterwise.status import Sent, error_from_status
from letterwise.v1 import errors_pb2

QUESTIONS = {"q": Noul("?"), "r": Noul("?")}
FAILURES: list[grpc.StatusCode] = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


def failure_of(server: Any, refusal: Any, **settings: Any) -> LetterwiseError:
    """What `decide` raises when the server refuses once and the client does not repeat."""
    server.servicer.refusals = [refusal]
    with Client(server.target, retry=None, **settings) as client, pytest.raises(LetterwiseError) as failed:
        client.decide("s", QUESTIONS)
    return failed.value


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_every_code_has_its_error(server: Any, refusal: Any, code: grpc.StatusCode) -> None:
    """Each of the sixteen codes raises its own class, from all five calls of both clients."""

    async def from_coroutines() -> list[LetterwiseError]:
        async with AsyncClient(server.target, retry=None) as client:
            calls = [client.decide("s", QUESTIONS), anext(client.decide_stream("s", QUESTIONS))]
            found = [*calls, anext(client.chat("hi")), client.prewarm("s"), client.info()]
            return list(await asyncio.gather(*found, return_exceptions=True))  # type: ignore[arg-type]

    server.servicer.refusals = [refusal(code, f"because of {code.name}") for _ in range(10)]
    raised = asyncio.run(from_coroutines())
    with Client(server.target, retry=None) as client:
        calls = [lambda: client.decide("s", QUESTIONS), lambda: list(client.decide_stream("s", QUESTIONS))]
        for call in [*calls, lambda: client.chat("hi").finish(), lambda: client.prewarm("s"), client.info]:
            with pytest.raises(LetterwiseError) as failed:
                call()
            raised.append(failed.value)
    assert {type(error) for error in raised} == {errors.CODES[code.name]}
    assert {error.code for error in raised} == {code.name}
    assert all(str(error).startswith(f"because of {code.name}") for error in raised)
    assert all(error.__cause__ is None and error.__suppress_context__ for error in raised)


def test_codes_and_tree_agree() -> None:
    """The table is total, each class says its own code, and the drawn tree names every class."""
    assert set(errors.CODES) == {code.name for code in FAILURES}
    classes = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
    tree = (errors.__doc__ or "").partition("\n\n")[2]
    assert set(re.findall(r"^[│ ]*(?:[├└]── )?([A-Z]\w+)", tree, re.MULTILINE)) == classes
    assert classes <= set(letterwise.__all__)


def test_invalid_request_names_every_field(server: Any, refusal: Any) -> None:
    """The field violations of google.rpc.BadRequest are read in order."""
    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="questions[2].options[0].name", description="must not be blank")
    bad.field_violations.add(field="samples", description="é")
    error = failure_of(server, refusal(grpc.StatusCode.INVALID_ARGUMENT, details=(bad,)))
    assert [(each.field, each.description) for each in error.violations] == [
        ("questions[2].options[0].name", "must not be blank"),
        ("samples", "é"),
    ]
    assert not error.retryable


def test_too_long_has_its_numbers(server: Any, refusal: Any) -> None:
    """The tokens and the limit come with OUT_OF_RANGE."""
    limit = errors_pb2.TokenLimit(tokens=9000, limit_tokens=8192)
    too_long = refusal(grpc.StatusCode.OUT_OF_RANGE, details=(limit,))

    async def from_coroutine() -> None:
        async with AsyncClient(server.target) as client:
            await client.info()

    error = failure_of(server, too_long)
    assert (error.tokens, error.limit_tokens, error.retryable) == (9000, 8192, False)
    server.servicer.refusals = [too_long]
    with pytest.raises(errors.TooLong) as failed:
        asyncio.run(from_coroutine())
    assert (failed.value.tokens, failed.value.limit_tokens) == (9000, 8192)


def test_internal_has_its_error_id(server: Any, refusal: Any) -> None:
    """The id that finds an internal failure in the log is read."""
    named = error_details_pb2.RequestInfo(request_id="abc123")
    error = failure_of(server, refusal(grpc.StatusCode.INTERNAL, details=(named,)))
    assert error.error_id == "abc123"


def test_full_queue_says_when_to_return(server: Any, refusal: Any) -> None:
    """RetryInfo makes RESOURCE_EXHAUSTED retryable, with its time; without one it is not."""
    wait = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=2, nanos=500_000_000))
    full = failure_of(server, refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, details=(wait,)))
    assert (full.retry_after_seconds, full.retryable) == (2.5, True)
    plain = failure_of(server, refusal(grpc.StatusCode.RESOURCE_EXHAUSTED))
    assert (plain.retry_after_seconds, plain.retryable) == (None, False)
    assert failure_of(server, refusal(grpc.StatusCode.UNAVAILABLE)).retryable


@pytest.mark.parametrize("trailer", [b"\xff\xff\xff", b"", "text"])
def test_damaged_details_do_not_hide_the_code(trailer: Any) -> None:
    """A trailer that cannot be read leaves the code and the message."""
    error = error_from_status("OUT_OF_RANGE", "too long", [("grpc-status-details-bin", trailer)])
    assert (type(error), str(error), error.tokens) == (errors.TooLong, "too long", None)
    assert error_from_status("OUT_OF_RANGE", "x", [("grpc-retry-pushback-ms", "soon")]).retry_after_seconds is None
    assert isinstance(error_from_status("A_NEW_CODE", "x"), errors.Unknown)


def test_own_messages_have_the_standard_layout() -> None:
    """The messages that stand in for google.rpc ones have the same field numbers and types."""
    pairs: list[tuple[Any, Any]] = [
        (errors_pb2.ErrorBadRequest, error_details_pb2.BadRequest),
        (errors_pb2.ErrorBadRequest.FieldViolation, error_details_pb2.BadRequest.FieldViolation),
        (errors_pb2.ErrorRetryInfo, error_details_pb2.RetryInfo),
        (errors_pb2.ErrorRequestInfo, error_details_pb2.RequestInfo),
    ]
    for own, standard in pairs:
        for each in own.DESCRIPTOR.fields:
            twin = standard.DESCRIPTOR.fields_by_name[each.name]
            assert (each.number, each.type) == (twin.number, twin.type)


def test_refused_calls_are_repeated(server: Any, refusal: Any) -> None:
    """UNAVAILABLE is tried up to four times in all, for streams too, and then raised."""
    retry = Retry(first_backoff_seconds=0.01)
    with Client(server.target, retry=retry) as client:
        server.servicer.refusals = [refusal(grpc.StatusCode.UNAVAILABLE)] * 3
        assert client.decide("s", QUESTIONS)["q"]
        server.servicer.refusals = [refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)] * 3
        assert len(list(client.decide_stream("s", QUESTIONS))) > 1
        assert len(server.servicer.requests) == 8
        server.servicer.refusals = [refusal(grpc.StatusCode.RESOURCE_EXHAUSTED)] * 3
        assert client.chat("hi").finish().text == "hi"
        assert len(server.servicer.requests) == 12
        server.servicer.refusals = [refusal(grpc.StatusCode.UNAVAILABLE)] * 4
        with pytest.raises(errors.Unavailable):
            client.decide("s", QUESTIONS)
    assert len(server.servicer.requests) == 16


def test_other_codes_are_not_repeated(server: Any, refusal: Any) -> None:
    """A deadline, a wrong request or a server's own failure is sent once."""
    codes = [code for code in FAILURES if code.name not in ("UNAVAILABLE", "RESOURCE_EXHAUSTED")]
    with Client(server.target, retry=Retry(first_backoff_seconds=0.01)) as client:
        for code in codes:
            server.servicer.refusals = [refusal(code)]
            with pytest.raises(errors.CODES[code.name]):
                client.info()
    assert len(server.servicer.requests) == len(codes)


def test_pushback_sets_the_wait(server: Any, refusal: Any) -> None:
    """The server's own time replaces the backoff, and a negative one ends the attempts."""
    retry = Retry(first_backoff_seconds=30, longest_backoff_seconds=30)
    pushed = refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, trailers=(("grpc-retry-pushback-ms", "150"),))
    with Client(server.target, retry=retry) as client:
        server.servicer.refusals = [pushed]
        began = time.monotonic()
        client.info()
        assert 0.14 <= time.monotonic() - began < 20
        server.servicer.refusals = [refusal(grpc.StatusCode.UNAVAILABLE, trailers=(("grpc-retry-pushback-ms", "-1"),))]
        with pytest.raises(errors.Unavailable):
            client.info()
    assert len(server.servicer.requests) == 3


def test_retry_policy_is_the_documented_one() -> None:
    """The service config names the services of the contract and the two codes; None sends no policy."""
    method = service_config(Retry())["methodConfig"][0]
    assert method["name"] == [{"service": f"letterwise.v1.{name}"} for name in ("DecisionService", "ChatService")]
    assert method["retryPolicy"]["maxAttempts"] == 4
    assert method["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
    options = dict(channel_options(None, 1024))
    assert "retryPolicy" not in json.dumps(options["grpc.service_config"])
    assert (options["grpc.enable_retries"], options["grpc.max_receive_message_length"]) == (0, 1024)
    settings: list[dict[str, Any]] = [{"attempts": 1}, {"attempts": 6}, {"growth": 0}]
    for wrong in settings:
        with pytest.raises(ValueError, match=r"attempts|positive"):
            Retry(**wrong)


def test_deadline_passes(server: Any) -> None:
    """The client's default deadline and a call's own both end it, and the server sees the end."""
    server.servicer.hold = threading.Event()
    with Client(server.target, timeout_seconds=0.1) as client:
        with pytest.raises(errors.DeadlineExceeded) as passed:
            client.decide("s", QUESTIONS)
        assert str(passed.value) == f"no answer from {server.target} within 0.1 s"
        assert server.servicer.ended.wait(30)
        began = time.monotonic()
        with pytest.raises(errors.DeadlineExceeded):
            list(client.decide_stream("s", QUESTIONS, timeout_seconds=0.3))
        assert time.monotonic() - began > 0.25
    assert not passed.value.retryable


def test_no_server_is_unavailable() -> None:
    """A port on which nothing listens and a name that leads nowhere are told plainly, and may be tried again."""
    told = {
        "127.0.0.1:1": "cannot reach 127.0.0.1:1: connection refused; is the server running?",
        "no-such-host.invalid": "cannot reach no-such-host.invalid:50051: the host name cannot be resolved",
    }
    for target, sentence in told.items():
        with Client(target, retry=None) as client, pytest.raises(errors.Unavailable) as failed:
            client.info()
        assert (str(failed.value), failed.value.retryable) == (sentence, True)


def test_name_that_leads_to_two_addresses_is_told_with_the_refused_one() -> None:
    """gRPC tells of its last try alone, which may be one that nobody listens on beside a server that does."""
    last = "ipv6:%5B::1%5D:50051: Failed to connect to remote host: Connection refused"
    told = Sent("localhost:50051", 5).error("UNAVAILABLE", f"failed to connect to all addresses; last error: {last}")
    assert str(told).startswith("cannot reach localhost:50051: connection refused at [::1]; ")


def test_http_port_is_told_from_a_grpc_one() -> None:
    """Who answers in another protocol is reached, and does not speak ours."""

    def answer() -> None:
        with web, contextlib.suppress(OSError):
            while True:
                connection, _ = web.accept()
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
                open_ones.append(connection)

    web, open_ones = socket.create_server(("127.0.0.1", 0)), list[socket.socket]()
    threading.Thread(target=answer, daemon=True).start()
    target = f"127.0.0.1:{web.getsockname()[1]}"
    with Client(target, retry=None) as client, pytest.raises(errors.Unavailable) as failed:
        client.info()
    web.shutdown(socket.SHUT_RDWR)
    for connection in open_ones:
        connection.close()
    assert str(failed.value) == f"cannot reach {target}: it does not speak gRPC there; is this its HTTP port?"


def test_message_over_the_size_limit_is_told_in_bytes(server: Any) -> None:
    """Whichever side has the limit, and whichever way the message goes."""
    with Client(server.target, max_message_bytes=1000) as client, pytest.raises(errors.Exhausted) as failed:
        client.decide("s" * 2000, QUESTIONS)
    assert re.fullmatch(r"the request has 2,\d\d\d bytes, and at most 1,000 may be sent", str(failed.value))
    with Client(server.target, max_message_bytes=5 * 2**20) as client, pytest.raises(errors.Exhausted) as failed:
        client.decide("s" * (4 * 2**20 + 1), QUESTIONS)
    assert re.fullmatch(r"the request has 4,194,\d\d\d bytes, and at most 4,194,304 may be sent", str(failed.value))
    with Client(server.target, max_message_bytes=60) as client, pytest.raises(errors.Exhausted) as failed:
        client.info()
    assert re.fullmatch(r"the reply has \d+ bytes, and at most 60 may be sent", str(failed.value))


def test_deadline_of_the_server_is_told_with_the_address(server: Any, refusal: Any) -> None:
    """The server's own words come first."""
    error = failure_of(server, refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow"), timeout_seconds=9)
    assert str(error) == f"too slow (server {server.target}, deadline of the call 9 s)"


def test_closing_a_stream_cancels_the_call(server: Any) -> None:
    """Closing ends the iteration at once and stops the server's work."""
    server.servicer.hold = threading.Event()
    with Client(server.target) as client:
        with client.decide_stream("s", QUESTIONS) as stream:
            kinds = [next(stream).kind for _ in range(5)]
            assert kinds[-1] == "answer"
        assert server.servicer.ended.wait(30)
        assert list(stream) == []


def test_closing_from_another_thread_ends_the_stream(server: Any) -> None:
    """A reader that waits for the next event sees the end of the stream, not a failure."""
    server.servicer.hold = threading.Event()
    with Client(server.target) as client:
        stream = client.decide_stream("s", QUESTIONS)
        timer = threading.Timer(0.1, stream.close)
        timer.start()
        assert [event.kind for event in stream][-1] == "answer"
        timer.join()


def test_closing_an_async_stream_cancels_the_call(server: Any) -> None:
    """The same for the asynchronous client, by its block and by a cancelled task."""

    async def leave_early() -> None:
        async with AsyncClient(server.target) as client:
            async with client.decide_stream("s", QUESTIONS) as stream:
                async for event in stream:
                    if event.kind == "answer":
                        break
            assert await asyncio.to_thread(server.servicer.ended.wait, 5)
            assert [event async for event in stream] == []
            server.servicer.ended.clear()
            task = asyncio.create_task(client.decide("s", QUESTIONS))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(server.servicer.ended.wait, 5)

    server.servicer.hold = threading.Event()
    asyncio.run(leave_early())


def test_closed_clients_say_so(server: Any) -> None:
    """A call on a closed client raises of the client's own tree, and says what was wrong."""

    async def closed_async() -> None:
        client = AsyncClient(server.target)
        await client.info()
        await client.close()
        with pytest.raises(errors.Cancelled, match="the client is closed"):
            await client.info()
        with pytest.raises(errors.Cancelled, match="the client is closed"):
            client.decide_stream("s", QUESTIONS)
        with pytest.raises(errors.Cancelled, match="the client is closed"):
            client.chat("hi")

    client = Client(server.target)
    client.close()
    for call in (client.info, lambda: client.decide_stream("s", QUESTIONS), lambda: client.chat("hi")):
        with pytest.raises(errors.Cancelled, match="the client is closed"):
            call()
    asyncio.run(closed_async())


def test_large_message_is_refused_here(server: Any) -> None:
    """A message over the limit is not sent, and is not called retryable."""
    with Client(server.target, max_message_bytes=1000) as client, pytest.raises(errors.Exhausted) as refused:
        client.decide("s" * 2000, QUESTIONS)
    assert not refused.value.retryable
    assert server.servicer.requests == []
