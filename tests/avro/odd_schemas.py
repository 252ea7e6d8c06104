"""Manifest schemas as other writers could have written them: the same encoding, other words."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

NAMED = ("record", "fixed", "enum")


class Oddity:
    """A random rewriter of schemas: the same bytes are records of the schema and of its result.

    Args:
        chance: the source of chance.
        java: whether Iceberg's Java library must understand the result: it reads ids only from schemas that have all,
            refuses a name with two meanings, and ignores aliases of the writer.
    """

    def __init__(self, chance: Random, *, java: bool = False) -> None:
        self.chance, self.java, self.names = chance, java, 0
        self.defined: dict[str, tuple[str, str]] = {}

    def schema(self, schema: dict[str, Any], *, drop_ids: bool) -> dict[str, Any]:
        """Return an equivalent schema, without ids of fields if `drop_ids`, or some of them."""
        odd = self.renamed(copy.deepcopy(schema), "")
        if drop_ids:
            self.strip(odd)
        return odd

    def renamed(self, kind: Any, space: str) -> Any:
        if isinstance(kind, list):
            return [self.renamed(branch, space) for branch in kind]
        if not isinstance(kind, dict):
            return self.wrapped(kind)
        if kind.get("type") in NAMED:
            return self.definition(kind, space)
        parts = {key: self.renamed(kind[key], space) for key in ("items", "values") if key in kind}
        if isinstance(kind.get("type"), dict | list):
            parts["type"] = self.renamed(kind["type"], space)
        return {**kind, **parts}

    def definition(self, kind: dict[str, Any], space: str) -> Any:
        """Define a type, again or under another name, or refer to an earlier definition of the same meaning."""
        meaning = json.dumps({key: value for key, value in kind.items() if key != "name"}, sort_keys=True)
        known = [(full, text) for full, (same, text) in self.defined.items() if same == meaning]
        if known and self.chance.random() < 0.6:
            full, text = self.chance.choice(known)
            if self.chance.random() < 0.5 or (self.java and kind["type"] != "fixed"):
                return full
            return json.loads(text)  # written out again, as pyiceberg does
        inner = self.chance.choice([space, "odd.space", "other"]) if kind["type"] == "record" else space
        self.names += 1
        name = f"{self.chance.choice('abc')}{self.names}"
        if not self.java and kind["type"] == "fixed" and self.chance.random() < 0.4:
            name = "same"  # of several sizes
        new = {**kind, "name": name}
        if inner != space:
            new |= {"namespace": inner} if self.chance.random() < 0.5 else {"name": f"{inner}.{name}"}
        if "fields" in kind:
            new["fields"] = [{**field, "type": self.renamed(field["type"], inner)} for field in kind["fields"]]
        full = f"{inner}.{name}" if inner else name
        names = [full]
        if not self.java and self.chance.random() < 0.3:
            new["aliases"] = [f"{name}_alias"]
            names.append(f"{full}_alias")
        text = json.dumps({**new, "name": full})
        for each in names:
            if "." in each or not space:  # a name without a dot is one of the space
                self.defined[each] = (meaning, text)
        return new

    def wrapped(self, kind: Any) -> Any:
        return {"type": kind} if isinstance(kind, str) and self.chance.random() < 0.2 else kind

    def strip(self, node: Any) -> None:
        """Drop all or some ids, including ids of pairs and elements, which nobody needs."""
        if isinstance(node, dict):
            for key in ("field-id", "element-id", "key-id", "value-id"):
                if key in node and (self.java or self.chance.random() < 0.7):
                    node.pop(key)
            if "field-id" in node and not self.java and self.chance.random() < 0.2:
                node["field-id"] = str(node["field-id"])
        for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            self.strip(value)
