"""Requests and answers of a service, checked with models that are generated from the protocol's OpenAPI document.

The models come from the package apache-polaris (`make protocol`). Without them nothing is checked.
"""

from __future__ import annotations

import gzip
import importlib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

FOLDER: Final = Path(__file__).parents[2] / "build" / "protocol"
_TABLE = "/v1/namespaces/[^/]+/tables/[^/]+"
# By method and path, the models of the request's body and of the answer's.
_MODELS: Final = {
    "GET /v1/config": (None, "CatalogConfig"),
    "GET /v1/namespaces": (None, "ListNamespacesResponse"),
    "GET /v1/namespaces/[^/]+": (None, "GetNamespaceResponse"),
    "GET /v1/namespaces/[^/]+/tables": (None, "ListTablesResponse"),
    f"GET {_TABLE}": (None, "LoadTableResult"),
    f"POST {_TABLE}/plan": ("PlanTableScanRequest", "PlanTableScanResult"),
    f"GET {_TABLE}/plan/[^/]+": (None, "FetchPlanningResult"),
    f"POST {_TABLE}/tasks": ("FetchScanTasksRequest", "FetchScanTasksResult"),
}
_ERROR: Final = "IcebergErrorResponse"
# What the document lacks, but Iceberg's clients write and read: keys of deletion vectors and of tables of version 1,
# the expressions `true` and `false`, and null in partition tuples.
_KEYS: Final = {
    ("PositionDeleteFile", "referenced-data-file"),
    ("TableMetadata", "schema"),
    ("TableMetadata", "partition-spec"),
}
_VALUES: Final = {"Expression": (True, False), "PrimitiveTypeValue": (None,)}


def models() -> Any:
    """Return the module of the models, or None if they are not installed."""
    if not FOLDER.is_dir():
        return None
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return importlib.import_module("apache_polaris.sdk.catalog.models")


def problem(model: str, document: Any) -> str | None:
    """Return why a JSON document is not valid for a model; None if it is."""
    try:
        _check(getattr(models(), model), document, "$")
    except ValueError as error:
        return str(error)
    return None


def _check(kind: Any, value: Any, path: str) -> None:
    """Raise ValueError if a value is not of a type of the models: a model, or lists, maps and unions of them.

    The models' own methods for parsing ignore unknown keys, and refuse a value of several types of a union, such as
    all strings.
    """
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        _check_model(kind, value, path)
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Union:
        _check_union(arguments, value, path)
    elif origin in (list, dict) and not isinstance(value, origin):
        raise ValueError(f"{path} is {value!r}: expected a {origin.__name__}")
    elif origin is list:
        for place, element in enumerate(value):
            _check(arguments[0], element, f"{path}[{place}]")
    elif origin is dict:
        for key, element in value.items():
            _check(arguments[1], element, f"{path}.{key}")
    elif kind is not Any:
        try:
            TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
        except ValueError as error:
            raise ValueError(f"{path} is {value!r}: {error}") from error


def _check_union(kinds: Sequence[Any], value: Any, path: str) -> None:
    problems = []
    for kind in kinds:
        if (kind is type(None)) != (value is None):
            continue
        try:
            _check(kind, value, path)
        except ValueError as error:
            problems.append(str(error))
        else:
            return
    raise ValueError(" or ".join(dict.fromkeys(problems)) or f"{path} is null")


def _check_model(model: type[BaseModel], value: Any, path: str) -> None:
    fields = model.model_fields
    if any(value is known for known in _VALUES.get(model.__name__, ())):
        return
    if "actual_instance" in fields:
        # JSON has null for it where the union itself has no null.
        kinds = get_args(fields["actual_instance"].annotation)
        _check_union(kinds if value is not None else (Any,), value, path)
        return
    if not isinstance(value, dict):
        raise ValueError(f"{path} is {value!r}: expected an object")  # noqa: TRY004  as all others
    known = {field.alias or name: (name, field) for name, field in fields.items() if name != "additional_properties"}
    for key, (_, field) in known.items():
        if field.is_required() and key not in value:
            raise ValueError(f"{path}.{key} is missing")
    for key, element in value.items():
        if key not in known:
            if "additional_properties" not in fields and (model.__name__, key) not in _KEYS:
                raise ValueError(f"{path}.{key} is unknown")
            continue
        name, field = known[key]
        kind = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        _check(kind, element, f"{path}.{key}")
        if isinstance(element, str) and _may_be_enumeration(field.annotation):
            # Enumerations are validators of the fields.
            model.__pydantic_validator__.validate_assignment(model.model_construct(), name, element)


def _may_be_enumeration(kind: Any) -> bool:
    arguments = get_args(kind)
    return any(map(_may_be_enumeration, arguments)) if arguments else kind is str


class Checked:
    """An ASGI application whose requests and answers are checked.

    Attributes:
        checked: the number of bodies that were checked, by model.
        problems: what is not valid, with the request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.checked: dict[str, int] = {}
        self.problems: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked, answered = bytearray(), bytearray()
        start: Message = {}

        async def received() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            answered.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, received, sent)
        request = f"{scope['method']} {scope.get('raw_path', scope['path'].encode()).decode('latin-1').rstrip('/')}"
        self._check(request, bytes(asked), start, bytes(answered))

    def _check(self, request: str, asked: bytes, start: Message, answered: bytes) -> None:
        kinds = next((kinds for pattern, kinds in _MODELS.items() if re.fullmatch(pattern, request)), None)
        status = start.get("status", 0)
        if status >= 400 and status != 499 and not request.endswith("/healthz"):
            self._check_body(_ERROR, request, start, answered)
        elif kinds is not None and status == 200:
            of_request, of_answer = kinds
            if of_request is not None:
                self._check_body(of_request, request, {}, asked)
            self._check_body(of_answer, request, start, answered)

    def _check_body(self, model: str, request: str, start: Message, body: bytes) -> None:
        headers = {name.lower(): value for name, value in start.get("headers", ())}
        if headers.get(b"content-encoding") == b"gzip":
            body = gzip.decompress(body)
        if not body and request.startswith("HEAD"):
            return
        self.checked[model] = self.checked.get(model, 0) + 1
        if (why := problem(model, json.loads(body))) is not None:
            self.problems.append(f"{request} {start.get('status', '')}: {model}: {why}: {body[:2000]!r}")
