"""The same cases as Avro: schemas as Confluent's converter writes them, and the JSON literals as Avro values."""

import base64
from typing import Any

from tests.unit.types.type_cases.case import CONNECT

__all__ = ["schema_of", "value_of"]

_PLAIN = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
_LOGICAL = {
    "Decimal": "decimal",
    "Date": "date",
    "Time": "time-millis",
    "Timestamp": "timestamp-millis",
}


def schema_of(declared: dict[str, Any], place: str = "x") -> Any:
    """The Avro schema of a Connect field; ``place`` names records that have no name of their own."""
    made = _present(declared, place)
    return ["null", made] if declared["optional"] else made


def _present(declared: dict[str, Any], place: str) -> Any:
    kind, name = declared["type"], declared.get("name")
    about: dict[str, Any] = {}
    if kind in ("int8", "int16"):
        about["connect.type"] = kind
    if name is not None:
        about |= {"connect.version": 1, "connect.name": name}
        about |= {"logicalType": _LOGICAL[short]} if (short := name.removeprefix(CONNECT)) in _LOGICAL else {}
    if "parameters" in declared:
        about["connect.parameters"] = declared["parameters"]
        about |= {"scale": int(declared["parameters"]["scale"]), "precision": 64} if "logicalType" in about else {}
    if kind == "struct":
        fields = [{"name": f["field"], "type": schema_of(f, f"{place}_{f['field']}")} for f in declared["fields"]]
        return {"type": "record", "name": f"{place}_record", "fields": fields, **about}
    if kind == "array":
        return {"type": "array", "items": schema_of(declared["items"], f"{place}_item"), **about}
    if kind == "map" and declared["keys"]["type"] == "string":
        return {"type": "map", "values": schema_of(declared["values"], f"{place}_value"), **about}
    if kind == "map":
        entry = [
            {"name": part, "type": schema_of(declared[f"{part}s"], f"{place}_{part}")} for part in ("key", "value")
        ]
        record = {"type": "record", "name": f"{place}_entry", "fields": entry, "connect.internal.type": "MapEntry"}
        return {"type": "array", "items": record, **about}
    plain = _PLAIN.get(kind, kind)
    return {"type": plain, **about} if about else plain


def value_of(declared: dict[str, Any], literal: Any) -> Any:
    """The Avro value of a literal in JSON."""
    kind = declared["type"]
    if literal is None:
        return None
    if kind == "bytes":
        return base64.b64decode(literal)
    if kind in ("float", "double"):
        return float(literal)  # NaN and infinities are texts in JSON
    if kind == "struct":
        return {f["field"]: value_of(f, literal.get(f["field"])) for f in declared["fields"]}
    if kind == "array":
        return [value_of(declared["items"], item) for item in literal]
    if kind == "map" and declared["keys"]["type"] == "string":
        return {key: value_of(declared["values"], item) for key, item in literal.items()}
    if kind == "map":
        return [{"key": key, "value": value_of(declared["values"], item)} for key, item in literal]
    return literal
