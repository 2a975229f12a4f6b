"""The domain's error tree and its two tables, and the gRPC reading of them."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

import grpc
import pytest
from google.rpc import error_details_pb2

from letterwise_service import errors
from letterwise_service.errors import GRPC_CODES, HTTP_STATUSES, InvalidRequest, LetterwiseError, Violation
from letterwise_service.server import status


def tree(root: type[LetterwiseError] = LetterwiseError) -> Iterator[type[LetterwiseError]]:
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def test_tree_as_drawn_is_the_tree_as_built() -> None:
    """The docstring draws every error, and no other."""
    drawn = {line.split()[1] for line in (errors.__doc__ or "").splitlines() if "──" in line}
    assert drawn == {error.__name__ for error in tree() if error is not LetterwiseError}


def test_tables_hold_codes_that_exist() -> None:
    """Every name is a gRPC code and every number an HTTP status; neither table calls an error OK."""
    assert all(grpc.StatusCode[name] is not grpc.StatusCode.OK for name in GRPC_CODES.values())
    assert all(HTTPStatus(number) >= 400 for number in HTTP_STATUSES.values())


def test_tables_agree_on_which_errors_they_name() -> None:
    """HTTP names what gRPC names, but for a caller who is gone and hears nothing."""
    assert set(GRPC_CODES) - set(HTTP_STATUSES) == {errors.Cancelled}
    assert set(HTTP_STATUSES) <= set(GRPC_CODES)


@pytest.mark.parametrize("error", list(tree()))
def test_every_error_has_a_code_by_itself_or_its_bases(error: type[LetterwiseError]) -> None:
    """What the table does not name is internal: a failed load, a failed read."""
    expected = GRPC_CODES.get(error, "INTERNAL")
    assert status.code_of(error.__new__(error)).name == expected


def test_child_of_a_named_error_has_its_code() -> None:
    """The nearest base that the table names decides."""

    class Wider(errors.Draining):
        """A kind of draining."""

    assert status.code_of(Wider("x")) is grpc.StatusCode.UNAVAILABLE


def test_invalid_request_message_names_every_field() -> None:
    """The message alone is enough to mend a request."""
    error = InvalidRequest([Violation("state", "expected text"), Violation("ask[1]", "expected an id")])
    assert str(error) == "state: expected text; ask[1]: expected an id"


def test_refusal_cuts_what_metadata_cannot_carry() -> None:
    """A thousand long violations stay within the receiver's limit; the first is whole and the text valid."""
    error = InvalidRequest([Violation(f"questions[{i}].id", "語" * 60) for i in range(1000)])
    refusal = status.refusal_of(error).status
    assert len(refusal.SerializeToString()) < 4000
    request = error_details_pb2.BadRequest()
    assert refusal.details[0].Unpack(request)
    assert request.field_violations[0].field == "questions[0].id"
    assert request.field_violations[0].description == "語" * 60
    assert 1 < len(request.field_violations) < 1000


def test_refusal_of_a_lone_surrogate_can_be_sent() -> None:
    """A message that no encoding can carry is mended, not a failure of its own."""
    assert status.refusal_of(errors.Unsupported("half \ud800")).status.message == "half ?"
