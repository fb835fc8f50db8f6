"""The server's own description: its routes, what they take, and every status that they give."""

from __future__ import annotations

from typing import Any

from burnish import __version__
from burnish.serve.http.schema import ChatAsked, CompletionAsked, DetokenizeAsked, TokenizeAsked

STATUSES = {
    "200": "the answer, whole or as server-sent events",
    "400": "a field is wrong; the message names it and what would be right",
    "401": "the key is missing or wrong",
    "404": "the model is not served here",
    "413": "the body is too large",
    "429": "too many requests wait",
    "500": "the engine failed",
    "503": "the server is shutting down",
    "504": "the request took longer than allowed",
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "object", "required": ["message", "type"], "properties": {"message": {"type": "string"}}}
    },
}


def openapi() -> dict[str, Any]:
    """The description as OpenAPI 3.1 has it."""
    schemas: dict[str, Any] = {"Error": ERROR}
    paths: dict[str, Any] = {}
    short = {key: STATUSES[key] for key in ("200", "400", "401", "404", "413", "503")}
    for path, kind, about, statuses in (
        ("/v1/completions", CompletionAsked, "Continue a text", STATUSES),
        ("/v1/chat/completions", ChatAsked, "Answer a conversation", STATUSES),
        ("/tokenize", TokenizeAsked, "The tokens of a text or of a conversation", short),
        ("/detokenize", DetokenizeAsked, "The text of tokens", short),
    ):
        schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[kind.__name__] = schema
        body = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}},
        }
        paths[path] = {"post": {"summary": about, "requestBody": body, "responses": _responses(statuses)}}
    some = {key: STATUSES[key] for key in ("200", "401")}
    paths["/v1/models"] = {"get": {"summary": "The models served", "responses": _responses(some)}}
    paths["/health"] = {
        "get": {"summary": "Whether requests are taken", "responses": _responses({"200": "yes", "503": "no"})}
    }
    paths["/metrics"] = {
        "get": {
            "summary": "Metrics for Prometheus",
            "responses": {"200": {"description": "text", "content": {"text/plain": {}}}},
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "burnish serve", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _responses(statuses: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, about in statuses.items():
        wrong = {"$ref": "#/components/schemas/Error"}
        content: dict[str, Any] = {"application/json": {"schema": wrong if status[0] in "45" and about != "no" else {}}}
        if status == "200":
            content["text/event-stream"] = {}
        found[status] = {"description": about, "content": content}
    return found
