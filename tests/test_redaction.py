"""Texts of errors stay out of logs and spans while a codec is in use."""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

import affinity
from affinity import redaction
from affinity.errors import ConnectionLost, WaitTimeout
from affinity.redaction import redacted, redacted_text
from affinity.user_code import describe_error

ROOT = Path(affinity.__file__).parent
LOGS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
ALLOWED = {
    "provider/postgres/driver/errors.py": "the server's words, in which payloads are encoded, without passwords",
}


class Codec:
    """A provider with a codec."""


@pytest.fixture
def codec() -> Iterator[Codec]:
    found = Codec()
    redaction.begin(found)
    yield found
    redaction.end(found)


def raised() -> Exception:
    try:
        try:
            dict[str, str]()["secret cause"]
        except KeyError as cause:
            raise ExceptionGroup("secret group", [ValueError("secret member"), ConnectionLost("no route")]) from cause
    except ExceptionGroup as error:
        error.add_note("secret note")
        return error
    raise AssertionError


def test_without_a_codec_an_error_is_itself() -> None:
    error = raised()
    assert redacted(error) is error
    assert redacted_text("text") == "text"


def test_a_stand_in_has_classes_places_and_no_texts(codec: Codec) -> None:
    shown = "".join(traceback.format_exception(redacted(raised())))
    for text in (
        "secret cause",
        "secret group",
        "secret member",
        "secret note",
    ):
        assert text not in shown.replace(f'"{text}"', "")  # the lines of this file have them too
    for text in ("KeyError: its text is encrypted", "ValueError: its text is encrypted", "no route", "in raised"):
        assert text in shown
    assert describe_error(redacted(LookupError("secret"))) == ("LookupError", "its text is encrypted")
    assert describe_error(redacted(ConnectionLost("no route"))) == ("ConnectionLost", "no route")


def test_a_class_of_the_application_may_not_pass_as_one_of_ours(codec: Codec) -> None:
    class Mine(ConnectionLost):
        pass

    assert str(redacted(Mine("secret"))) == "its text is encrypted"
    assert str(redacted(WaitTimeout("secret"))) == "its text is encrypted"
    assert redacted_text("secret", Mine("secret")) == "its text is encrypted"
    assert redacted_text("no route", ConnectionLost("no route")) == "no route"


def test_it_ends_when_the_last_provider_with_a_codec_is_closed(codec: Codec) -> None:
    other = Codec()
    redaction.begin(other)
    redaction.end(codec)
    assert redaction.is_on()
    del other
    assert not redaction.is_on()


def test_a_long_chain_of_causes_is_bounded(codec: Codec) -> None:
    error: Exception = ValueError("secret")
    for _ in range(5000):
        new = ValueError("secret")
        new.__cause__ = error
        error = new
    shown: BaseException = redacted(error)
    for _ in range(100):
        if shown.__cause__ is None:
            return
        shown = shown.__cause__
    pytest.fail("the chain is too long")


def test_no_line_of_the_log_has_an_error_as_it_is() -> None:
    """In each call of a logger, an error goes through `redacted`, and so does its traceback."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        if str(path.relative_to(ROOT)) not in ALLOWED
        if "logger" in (text := path.read_text()).lower()
        for call in ast.walk(ast.parse(text))
        if is_of_logger(call) and has_error(call)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "logger.warning('%s', error)",
        "logger.warning('%s', asked[0].error)",
        "logger.warning('%s: %s', *describe_error(error))",
        "self.logger.exception('it failed')",
        "logger.error('it failed', exc_info=error)",
        "logger.error('it failed', exc_info=True)",
        "logger.error('it failed', exc_info=error if last else None)",
        "logger.error(f'it failed: {error}')",
    ],
)
def test_such_a_line_is_found(line: str) -> None:
    assert [has_error(node) for node in ast.walk(ast.parse(line)) if is_of_logger(node)] == [True]


def is_of_logger(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOGS
        and ast.unparse(node.func.value).rpartition(".")[2].strip("_").lower() in {"log", "logger"}
    )


def has_error(call: ast.Call) -> bool:
    assert isinstance(call.func, ast.Attribute)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if call.func.attr == "exception" and "exc_info" not in given:
        return True
    trace = given.pop("exc_info", None)
    if trace is not None and "redacted(" not in ast.unparse(trace) and ast.unparse(trace) not in {"None", "defect"}:
        return True
    return any(map(names_an_error, (*call.args, *given.values())))


def names_an_error(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {"redacted", "redacted_text"}:
        return False
    if isinstance(node, ast.Attribute) and node.attr.endswith("_id"):
        return False
    if isinstance(node, ast.Name) and node.id in {"error", "failure", "exc", "ended"}:
        return True
    if isinstance(node, ast.Attribute) and node.attr in {"error", "message", "failure"}:
        return True
    return any(map(names_an_error, ast.iter_child_nodes(node)))
