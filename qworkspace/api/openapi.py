"""The OpenAPI 3.1 document: made from the route table and the very models that validate."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from qworkspace.api.basic_schemas import ErrorAnswer
from qworkspace.api.operations import Operation

REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
JsonObject = dict[str, Any]


def document(operations: Sequence[Operation], version: str) -> JsonObject:
    """The whole document."""
    schemas = _schemas(operations)
    paths: dict[str, JsonObject] = {}
    for operation in operations:
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _operation(operation, schemas)
    licence = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
    failed = {"description": "It failed", "content": _content(("application/json",), ErrorAnswer)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "qworkspace", "version": version, "license": licence},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Error": failed},
        },
        "security": [{"token": []}],
    }


def _schemas(operations: Iterable[Operation]) -> JsonObject:
    models: dict[type[BaseModel], None] = {ErrorAnswer: None}
    for operation in operations:
        models |= dict.fromkeys(model for model in (operation.body, operation.query, operation.answer) if model)
    _, found = models_json_schema([(model, "validation") for model in models], ref_template=REF)
    schemas: JsonObject = found["$defs"]
    return schemas


def _operation(operation: Operation, schemas: JsonObject) -> JsonObject:
    described: JsonObject = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation, schemas), *_headers(operation)],
        "responses": {str(operation.status): _answer(operation), "default": {"$ref": "#/components/responses/Error"}},
    }
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.accepts, operation.body)}
    if operation.public:
        described["security"] = []
    return described


def _operation_id(operation: Operation) -> str:
    words = re.findall(r"[a-z0-9_]+", operation.path.lower())
    return "_".join([operation.method.lower(), *words])


def _answer(operation: Operation) -> JsonObject:
    if operation.status == 204:
        return {"description": "Done"}
    content: JsonObject = {}
    for media_type in operation.media_types:
        json = media_type == "application/json" and operation.answer is not None
        content |= _content((media_type,), operation.answer) if json else {media_type: {"schema": {"type": "string"}}}
    return {"description": operation.summary, "content": content}


def _content(media_types: Iterable[str], model: type[BaseModel] | None) -> JsonObject:
    schema = {"$ref": REF.format(model=model.__name__)} if model is not None else {}
    return {media_type: {"schema": schema} for media_type in media_types}


def _path_parameters(operation: Operation) -> list[JsonObject]:
    names = _PARAMETER.findall(operation.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(operation: Operation, schemas: JsonObject) -> list[JsonObject]:
    if operation.query is None:
        return []
    schema = schemas[operation.query.__name__]
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field}
        for name, field in schema.get("properties", {}).items()
    ]


def _headers(operation: Operation) -> list[JsonObject]:
    text = {"type": "string"}
    return [{"name": name, "in": "header", "required": False, "schema": text} for name in operation.headers]
