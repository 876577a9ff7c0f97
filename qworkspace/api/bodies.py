"""Request bodies: JSON in UTF-8 that fits its model, or an error that names the field."""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from qworkspace.base.text import clean_text
from qworkspace.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)
PROBLEMS_SHOWN = 5
DEEPEST = 100
TOO_DEEP = f"nested more than {DEEPEST} levels deep"


async def read(request: Request, model: type[M], accepts: tuple[str, ...] = ("application/json",)) -> M:
    """The body as `model`; 415 for another content type, 400 for what does not parse or fit."""
    check_content_type(request, accepts)
    value = parse(await request.body())
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error, "body") from None


async def read_text(request: Request, accepts: tuple[str, ...]) -> tuple[str, str]:
    """The content type and the body as a text; 415 for another content type, 400 for what is not UTF-8."""
    return check_content_type(request, accepts), _decoded(await request.body())


def check_content_type(request: Request, accepts: tuple[str, ...]) -> str:
    """The content type, one of `accepts`; `InvalidInput` (415) for any other."""
    given = request.headers.get("content-type", "")
    kind, _, parameters = given.partition(";")
    charset = parameters.lower().replace('"', "").replace(" ", "").partition("charset=")[2] or "utf-8"
    kind = kind.strip().lower()
    if kind not in accepts or charset.partition(";")[0] not in ("utf-8", "utf8"):
        raise InvalidInput(
            f"the content type {given[:100]!r} is not accepted here; send {' or '.join(accepts)} in UTF-8",
            code="unsupported_media_type",
        )
    return kind


def parse(body: bytes) -> Any:
    """JSON as values; lone surrogates become U+FFFD, NaN and infinities are refused."""
    text = _decoded(body)
    try:
        value = json.loads(text, parse_constant=_no_constant)
        if "\\ud" in text.lower() or text.count("[") + text.count("{") > DEEPEST:
            value = _clean(value, DEEPEST)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else TOO_DEEP
        raise InvalidInput(f"the body is not accepted as JSON: {reason}", code="invalid_json") from None
    return value


def _decoded(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the body is not UTF-8 (byte {error.start})", code="invalid_json") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _clean(value: Any, levels: int) -> Any:
    """`value` with valid texts, at most `levels` deep."""
    if isinstance(value, str):
        return clean_text(value)
    if not isinstance(value, (list, dict)):
        return value
    if not levels:
        raise ValueError(TOO_DEEP)
    if isinstance(value, list):
        return [_clean(item, levels - 1) for item in value]
    return {clean_text(key): _clean(item, levels - 1) for key, item in value.items()}


def invalid(error: ValidationError, where: str) -> InvalidInput:
    """What does not fit, by field; the values themselves are not repeated (they may be secrets)."""
    found = [
        {"field": field_name(item["loc"]) or where, "problem": item["msg"].removeprefix("Value error, ")}
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    message = "; ".join(f"{item['field']}: {item['problem']}" for item in found[:PROBLEMS_SHOWN])
    if len(found) > PROBLEMS_SHOWN:
        message += f"; and {len(found) - PROBLEMS_SHOWN} more"
    return InvalidInput(message, field=found[0]["field"], problems=found[:PROBLEMS_SHOWN])


def field_name(location: tuple[int | str, ...]) -> str:
    """`("message", 1, "path")` as `message[1].path`."""
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name
