"""The HTTP routes: what each answers, and that a decision by HTTP is the one that gRPC gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from letterwise import jev as client_jev
from letterwise.replies import read_decision
from letterwise_service import errors, metrics
from letterwise_service.errors import HTTP_STATUSES, LetterwiseError
from letterwise_service.server.http_errors import http_refusal_of, status_of

from . import bodies
from .conftest import small_engine
from .test_lifetime import submitted
from .web import TICKET, Web, opened, ticket, told

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_decision_is_the_one_that_grpc_gives(web: Web) -> None:
    """The same request through both doors: the whole reply, digit for digit and in order, but for what was counted."""
    reply = await web.post(TICKET)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    by_grpc = client_jev.reply(read_decision(await web.running.stub.Decide(ticket())))
    assert json.dumps(reply.json()["answers"]) == json.dumps(by_grpc["answers"])
    assert reply.json()["usage"] == by_grpc["usage"]
    assert reply.json()["model"] == "scripted"
    told_by_http, told_by_grpc = reply.json()["diagnostics"], json.loads(json.dumps(by_grpc["diagnostics"]))
    assert set(told_by_http) == set(told_by_grpc)
    for name in ("letter_mass", "stages", "orderings", "passes", "prefix", "prompt_tokens", "ignored", "readout"):
        assert told_by_http[name] == told_by_grpc[name], name
    assert [skip["id"] for skip in told_by_http["skipped"]] == [skip["id"] for skip in told_by_grpc["skipped"]] != []


async def test_numbers_are_unrounded_and_skips_absent(web: Web) -> None:
    """Every answer has its published shape; what was skipped is no answer and is listed with its reason."""
    body = (await web.post(TICKET)).json()
    answers, skipped = body["answers"], {skip["id"]: skip for skip in body["diagnostics"]["skipped"]}
    assert set(answers) | set(skipped) == set(TICKET["questions"])
    assert not set(answers) & set(skipped)
    assert all(set(skip) == {"id", "because", "was", "wanted"} for skip in skipped.values())
    assert set(answers["refund"]) == {"type", "noul"}
    assert set(answers["team"]) == {"type", "choice", "probabilities", "confidence"}
    assert set(answers["urgency"]) == {"type", "score", "legend", "probabilities", "confidence"}
    assert answers["urgency"]["legend"] == {"0": "low", "1": "middle", "2": "high"}
    assert list(answers["team"]["probabilities"]) == ["billing", "technical", "other"]
    numbers = [answers["refund"]["noul"], *answers["team"]["probabilities"].values(), answers["urgency"]["score"]]
    assert any(len(repr(number)) > 12 for number in numbers)
    assert body["usage"] == {"input_tokens": body["diagnostics"]["prompt_tokens"], "output_tokens": 0}


async def test_both_paths_answer_alike(web: Web) -> None:
    """`/systemone` and `/prewarm` are the routes of `/v1`."""
    first, second = await web.post(TICKET), await web.post(TICKET, "/systemone")
    assert first.json()["answers"] == second.json()["answers"]
    warmed = [await web.post({"state": "x" * 40}, path) for path in ("/v1/prewarm", "/prewarm")]
    assert [reply.json()["prompt_tokens"] for reply in warmed] == [40, 40]


async def test_prewarm_tells_what_was_read_and_kept(web: Web) -> None:
    """The state alone; what else a decision's body has is taken, named and not used."""
    reply = await web.post({**TICKET, "think": True, "service_class": "batch"}, "/v1/prewarm")
    body = reply.json()
    assert reply.status_code == 200
    assert (body["model"], body["stored"], body["tier"], body["reused_tokens"]) == ("scripted", True, "exact", 0)
    assert body["prompt_tokens"] == body["diagnostics"]["prefix"]["tokens"] > 0
    assert body["diagnostics"]["ignored"] == ["samples", "questions", "think"]
    assert web.engine.jobs[0].permit.request is None
    assert web.engine.jobs[0].permit.service_class == "batch"
    assert told(await web.post({}, "/v1/prewarm"), 422)["field_violations"][0]["field"] == "state"


async def test_empty_ids_and_any_text_are_ids(web: Web) -> None:
    """What gRPC would refuse, JSON can say."""
    question = TICKET["questions"]["refund"]
    ids = ["", "a:b", "with space", "日本"]
    reply = await web.post({"state": "s", "questions": dict.fromkeys(ids, question)})
    assert list(reply.json()["answers"]) == ids


async def test_models_suit_both_packages(web: Web) -> None:
    """One list in two shapes, each with the served model's name."""
    body = (await web.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(one["id"], one["object"]) for one in body["data"]] == [("scripted", "model")]
    assert isinstance(body["data"][0]["created"], int)
    [model] = body["models"]
    assert model["name"] == "scripted"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", model["release_date"])
    assert model["description"]


async def test_unused_fields_are_named_and_logged_once(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    """Those of the Jev family; a name that only the caller knows is in the reply and never in the log."""
    body = {**TICKET, "seed": 3, "my secret": 1}
    with caplog.at_level("INFO"):
        replies = [(await web.post(body)).json() for _ in range(2)]
    assert [reply["diagnostics"]["ignored"] for reply in replies] == [["seed", "my secret"]] * 2
    noted = [getattr(record, "field", None) for record in caplog.records]
    assert [field for field in noted if field] == ["seed"]
    assert "my secret" not in caplog.text


async def test_watching_routes_say_alive_and_ready_and_count(web: Web) -> None:
    """And the metrics are those of the registry, this scrape's own route among them."""
    assert (await web.get("/healthz")).json() == {"status": "ALIVE"}
    assert (await web.get("/readyz")).json() == {"status": "SERVING"}
    scrape = await web.get("/metrics")
    assert scrape.headers["content-type"].startswith("text/plain")
    families = {family.name for family in text_string_to_metric_families(scrape.text)}
    assert {"letterwise_ready", "letterwise_http_requests", "letterwise_http_request_seconds"} <= families
    assert (await web.client.head("/healthz")).status_code == 200


async def test_requests_are_counted_and_logged(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    """A line per request with its id, route, status and time; probes only in detail. Unknown words are no labels."""

    def count(route: str, method: str, status: str) -> float:
        labels = {"route": route, "method": method, "status": status}
        return metrics.REGISTRY.get_sample_value("letterwise_http_requests_total", labels) or 0.0

    wanted = [("/v1/systemone", "POST", "200"), ("/v1/systemone", "POST", "422"), ("other", "other", "404")]
    before = [count(*one) for one in wanted]
    with caplog.at_level("INFO"):
        await web.post(TICKET, headers={"x-request-id": "mine.1"})
        await web.post({"state": "very private"})
        reader, _ = await web.raw(b"BREW /very/private HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"404" in await reader.read()
        await web.get("/healthz")
    assert [count(*one) - earlier for one, earlier in zip(wanted, before, strict=True)] == [1, 1, 1]
    seconds = {"route": "/v1/systemone", "method": "POST"}
    assert metrics.REGISTRY.get_sample_value("letterwise_http_request_seconds_count", seconds)
    lines = [record for record in caplog.records if record.getMessage() == "http"]
    assert [(line.route, line.status) for line in lines] == [  # type: ignore[attr-defined]
        ("/v1/systemone", 200),
        ("/v1/systemone", 422),
        ("other", 404),
    ]
    assert "very private" not in caplog.text
    assert "/very/private" not in caplog.text


async def test_request_id_is_the_callers_or_a_new_one(web: Web) -> None:
    """An acceptable one comes back in both headers; one that could break a log does not."""
    for asked, taken in (("abc-1:2.3_x", True), ("a" * 129, False), ("no spaces", False)):
        reply = await web.get("/v1/models", headers={"x-request-id": asked})
        assert (reply.headers["x-request-id"] == asked) is taken
        assert reply.headers["x-typesafe-request-id"] == reply.headers["x-request-id"] != ""


async def test_any_bearer_is_accepted_when_none_is_set(web: Web) -> None:
    """With a key, with another scheme, without: a server without tokens asks for none."""
    for headers in ({}, {"authorization": "Bearer local"}, {"authorization": "Basic eDp5"}):
        assert (await web.get("/v1/models", headers=headers)).status_code == 200


async def test_tokens_guard_every_route_but_the_probes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a known one 401, before the body is read; with it the answer, and its name in the log."""
    file = tmp_path / "tokens"
    file.write_text("billing:s3cret\n")
    async with opened(small_engine(), token_file=str(file)) as web:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            for refused in (
                await web.post(TICKET, headers=headers),
                await web.post(b"no JSON", "/v1/decisions", headers=headers),
                await web.get("/v1/models", headers=headers),
                await web.get("/metrics", headers=headers),
                await web.get("/no-such-route", headers=headers),
            ):
                assert "token" in told(refused, 401)["message"]
                assert refused.headers["www-authenticate"] == "Bearer"
        assert [(await web.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        assert not web.engine.jobs
        assert (await web.post(TICKET, headers={"authorization": "Bearer s3cret"})).status_code == 200
        assert (await web.get("/metrics", headers={"authorization": "bearer s3cret"})).status_code == 200
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("POST", "/v2/systemone", 404), ("GET", "/v1/systemone", 405), ("POST", "/v1/models", 405)],
)
async def test_unknown_routes_and_methods_are_refused_in_the_one_form(
    web: Web, method: str, path: str, status: int
) -> None:
    """A JSON error like any other; a wrong method is told the right ones."""
    reply = await web.client.request(method, path)
    told(reply, status)
    assert ("allow" in reply.headers) is (status == 405)


FAILURES: list[tuple[LetterwiseError, int]] = [
    (errors.TooLong("the longest prompt has 9 tokens", tokens=9, limit_tokens=5), 400),
    (errors.ModelUnsuitable("scripted cannot serve letter reads: the letter q"), 400),
    (errors.Unsupported("state: images are not read"), 400),
    (errors.OutOfMemory("no memory"), 503),
    (errors.EngineDown("the engine is not running"), 503),
    (errors.DeadlineExceeded("the job's deadline has passed"), 504),
]


@pytest.mark.parametrize(("error", "status"), FAILURES, ids=lambda value: type(value).__name__)
async def test_domain_errors_have_their_statuses(web: Web, error: LetterwiseError, status: int) -> None:
    """Raised at admission, each comes back with its words; 503 says when to come back, 504 not to."""
    web.engine.admit_error = error
    reply = await web.post(TICKET)
    refused = told(reply, status)
    assert refused["message"] == str(error)
    assert ("retry-after" in reply.headers) is (status == 503)
    assert (reply.headers.get("x-should-retry") == "false") is (status == 504)
    if isinstance(error, errors.TooLong):
        assert (refused["tokens"], refused["limit_tokens"]) == (9, 5)


async def test_full_queue_says_when_to_come_back(web: Web) -> None:
    """503, in seconds rounded up and in milliseconds."""
    web.engine.hold()
    calls = [web.running.stub.Decide(bodies.ticket()) for _ in range(3)]
    await submitted(web.engine, 3)
    reply = await web.post(TICKET)
    told(reply, 503)
    assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("2", "1500")
    web.engine.release()
    for call in calls:
        assert (await call).answers
    for seconds, header in ((0.01, "1"), (29.2, "30"), (4000.0, "30")):
        refusal = http_refusal_of(errors.QueueFull("full", retry_after_seconds=seconds))
        assert refusal.headers["retry-after"] == header


async def test_unforeseen_failure_is_500_with_an_id(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an id and none of the cause, which is in the log under it."""
    web.engine.scores = lambda text, letters: (float("nan"),) * letters
    for path, body in (("/v1/systemone", TICKET), ("/v1/decisions", OPENAI)):
        with caplog.at_level("ERROR"):
            error = told(await web.post(body, path), 500)
        assert re.search(r"\b[0-9a-f]{32}\b", error["message"])
        assert error["error_id"] in error["message"]
        assert any(getattr(record, "error_id", "") == error["error_id"] for record in caplog.records)
        assert "nan" not in error["message"]


async def test_every_error_of_the_domain_has_a_status(web: Web) -> None:
    """The table answers for each class, and what is not in it is our own fault."""
    statuses = {each.__name__: status_of(each.__new__(each)) for each in LetterwiseError.__subclasses__()}
    assert statuses["ReadFailed"] == statuses["LoadFailed"] == 500
    assert {name for name, status in statuses.items() if status == 500} == {"ReadFailed", "LoadFailed", "Cancelled"}
    assert set(HTTP_STATUSES.values()) == {400, 401, 422, 500, 503, 504}


async def test_every_violation_is_told_with_its_path(web: Web) -> None:
    """As the body has it, all in one refusal."""
    questions = {"a b": {"type": "noul"}, "c": {"type": "choice", "instructions": "?", "criteria": {" ": None}}}
    error = told(await web.post({"questions": questions}), 422)
    fields = [violation["field"] for violation in error["field_violations"]]
    assert fields == ["state", "questions.a b.instructions", "questions.c.criteria. "]
    assert all(violation["description"].startswith("expected ") for violation in error["field_violations"])
    assert all(field in error["message"] for field in fields)


OPENAI: dict[str, Any] = {
    "model": "gpt-6-luna",
    "input": "I was charged twice.",
    "questions": [
        {"type": "predicate", "name": "refund", "instructions": "A refund is asked for."},
        {
            "type": "choice",
            "instructions": "Which team?",
            "choices": [{"value": "billing", "description": "charges"}, {"value": True}, {"value": "true"}],
        },
        {
            "type": "score",
            "name": "urgency",
            "instructions": "How urgent?",
            "levels": [{"label": "low"}, {"label": "low", "description": "again"}, {"label": "high"}],
        },
    ],
}


async def test_openai_decision_is_the_jev_decision(web: Web) -> None:
    """The same questions in both shapes have the same numbers; names, values and labels come back as they were."""
    reply = await web.post({**OPENAI, "safety_identifier": "u", "samples": 3}, "/v1/decisions")
    assert reply.status_code == 200, reply.text
    theirs = reply.json()
    asked = {
        "0": {"type": "noul", "instructions": "A refund is asked for."},
        "1": {
            "type": "choice",
            "instructions": "Which team?",
            "criteria": {"billing": "charges", "true (boolean)": None, "true": None},
        },
        "2": {"type": "score", "instructions": "How urgent?", "criteria": ["low", "low: again", "high"]},
    }
    ours = (await web.post({"state": OPENAI["input"], "questions": asked, "samples": 3})).json()
    predicate, choice, score = theirs["answers"]
    assert predicate == {"type": "predicate", "name": "refund", "probability": ours["answers"]["0"]["noul"]}
    by_name = ours["answers"]["1"]["probabilities"]
    assert [(one["value"], one["probability"]) for one in choice["probabilities"]] == [
        ("billing", by_name["billing"]),
        (True, by_name["true (boolean)"]),
        ("true", by_name["true"]),
    ]
    assert choice["choice"] == {"true (boolean)": True}.get(
        ours["answers"]["1"]["choice"], ours["answers"]["1"]["choice"]
    )
    assert (choice["name"], choice["confidence"]) == (None, ours["answers"]["1"]["confidence"])
    assert (score["score"], score["confidence"]) == (ours["answers"]["2"]["score"], ours["answers"]["2"]["confidence"])
    assert [(one["label"], one["value"]) for one in score["probabilities"]] == [("low", 0), ("low", 1), ("high", 2)]
    assert [one["probability"] for one in score["probabilities"]] == list(
        ours["answers"]["2"]["probabilities"].values()
    )
    assert theirs["model"] == "scripted"
    assert theirs["diagnostics"]["ignored"] == ["safety_identifier"]
    usage = theirs["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] == ours["usage"]["input_tokens"]
    prefix = theirs["diagnostics"]["prefix"]
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": prefix["tokens"]}
