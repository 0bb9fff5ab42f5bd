"""`AffinityStore`: LangGraph's long-term memory, values by namespace and key, on the tables of the checkpointer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import ge, gt, le, lt
from typing import Any, Final, Self

from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
)

from affinity.errors import InvalidInput, InvalidOptions, NotSerializable
from affinity.integrations.database import CONNECTIONS, Connection, Database
from affinity.integrations.langgraph.threads import TABLES

_PAGE: Final = 200
"""Items that are read together where values are compared."""

MAX_KEY: Final = 1024
"""UTF-8 bytes of a key, and of the labels of a namespace together: both fit a row of an index."""


class AffinityStore(BaseStore):
    """A store for LangGraph on SQLite and PostgreSQL. One batch is one transaction; of two writes the later one counts.

    ::

        graph = builder.compile(checkpointer=AffinitySaver(url), store=AffinityStore(url))

    Values are JSON objects. A search goes by namespace and by values of fields, which are compared here and not by the
    database. There is no search by meaning: ``query`` and ``index`` have no effect. Items have no time to live.

    Raises:
        InvalidUrl: the URL names neither a PostgreSQL database nor an SQLite file.
    """

    __slots__ = ("_database",)

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        """Open nothing yet; see `AffinitySaver`.

        Raises:
            InvalidUrl: see above.
            InvalidOptions: ``connections`` is less than 1.
        """
        super().__init__()
        if connections < 1:
            raise InvalidOptions(f"connections={connections}: at least one is needed")
        self._database = Database(url, TABLES, connections)

    def setup(self) -> None:
        """Make the tables, unless they are there. The first call of a role that may do so makes them too.

        Raises:
            ProviderError: the database cannot be reached, or has refused it.
        """
        self._database.run(lambda _: None)

    def close(self) -> None:
        """Close the connections. The store cannot be used any more."""
        self._database.close()

    def __enter__(self) -> Self:
        """Return the store."""
        return self

    def __exit__(self, *_: object) -> None:
        """See `close`."""
        self.close()

    def batch(self, ops: Iterable[Op]) -> list[Any]:
        """Run operations in one transaction: the reads first, then the writes. Return their results, in order.

        Raises:
            InvalidNamespaceError: a label is empty, is no text, or has a dot.
            InvalidInput: a key is too long, or an operator of a filter is unknown.
            NotSerializable: a value has no JSON form.
            NotImplementedError: an item is to have a time to live.
            ProviderError: the database cannot be reached, or has refused it.
        """
        work = _Batch(ops)
        return self._database.run(work.run, "write" if work.puts else "read")

    async def abatch(self, ops: Iterable[Op]) -> list[Any]:
        """See `batch`."""
        work = _Batch(ops)
        return await self._database.arun(work.run, "write" if work.puts else "read")


class _Batch:
    """Operations that run in one transaction."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self._ops = list(ops)
        self.puts: dict[tuple[str, str], str | None] = {}
        """Values as JSON by namespace and key; None: the item is deleted. The last one of a key counts."""
        for op in self._ops:
            _check_labels(op)
            if isinstance(op, PutOp):
                if op.ttl is not None:
                    raise NotImplementedError("items have no time to live here: leave ttl out, and delete them")
                self.puts[_name(op.namespace), _key(op.key)] = None if op.value is None else _to_json(op)
            elif not isinstance(op, GetOp | SearchOp | ListNamespacesOp):
                raise InvalidInput(f"a batch has no operation {type(op).__name__}")

    def run(self, connection: Connection) -> list[Any]:
        results = [self._read(connection, op) for op in self._ops]
        now = time.time()
        for (namespace, key), value in sorted(self.puts.items(), key=lambda put: put[0]):  # one order of the locks
            about = {"namespace": namespace, "key": key}
            if value is None:
                connection.fetch("delete_item", about)
            else:
                connection.fetch("put_item", {**about, "value": value, "now": now})
        return results

    def _read(self, connection: Connection, op: Op) -> Any:
        if isinstance(op, GetOp):
            rows = connection.fetch("get_item", {"namespace": _name(op.namespace), "key": _key(op.key)})
            return Item(**_fields(rows[0])) if rows else None
        if isinstance(op, SearchOp):
            return _search(connection, op)
        if isinstance(op, ListNamespacesOp):
            return _list_namespaces(connection, op)
        return None


def _search(connection: Connection, op: SearchOp) -> list[SearchItem]:
    if not op.filter:
        return [SearchItem(**_fields(row)) for row in _rows(connection, op.namespace_prefix, op.limit, op.offset)]
    found: list[SearchItem] = []
    place = 0
    while rows := _rows(connection, op.namespace_prefix, _PAGE, place):
        items = (SearchItem(**_fields(row)) for row in rows)
        found += [item for item in items if _has_all(item.value, op.filter)]
        if len(found) >= op.offset + op.limit:
            break
        place += len(rows)
    return found[op.offset : op.offset + op.limit]


def _rows(connection: Connection, prefix: Sequence[str], most: int, offset: int) -> Sequence[tuple[Any, ...]]:
    given: dict[str, object] = {"most": most, "offset": offset}
    if not prefix:
        return connection.fetch("all_items", given)
    name = _name(prefix)
    # Namespaces below it begin with the name and a dot; the character behind a dot is a slash.
    return connection.fetch("search_items", {**given, "namespace": name, "low": f"{name}.", "high": f"{name}/"})


def _list_namespaces(connection: Connection, op: ListNamespacesOp) -> list[tuple[str, ...]]:
    every = [tuple(name.split(".")) for (name,) in connection.fetch("item_namespaces")]
    fitting = (each for each in every if all(_fits(each, condition) for condition in op.match_conditions or ()))
    cut = fitting if op.max_depth is None else (each[: op.max_depth] for each in fitting)
    return sorted({*cut})[op.offset : op.offset + op.limit]


def _fits(namespace: Sequence[str], condition: MatchCondition) -> bool:
    path = condition.path
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


_COMPARED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}


def _has_all(value: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(_has(value.get(key), each) for key, each in wanted.items())


def _has(value: Any, wanted: Any) -> bool:
    """Return whether a value is as a filter wants it: equal, or by operators; of an object the named fields count."""
    if not isinstance(wanted, Mapping):
        return bool(value == (list(wanted) if isinstance(wanted, tuple) else wanted))
    if any(key.startswith("$") for key in wanted):
        return all(_meets(value, operator, each) for operator, each in wanted.items())
    return isinstance(value, Mapping) and _has_all(value, wanted)


def _meets(value: Any, operator: str, wanted: Any) -> bool:
    if operator == "$eq":
        return bool(value == wanted)
    if operator == "$ne":
        return bool(value != wanted)
    if operator not in _COMPARED:
        raise InvalidInput(f"a filter has no operator {operator!r}: it has $eq, $ne, $gt, $gte, $lt and $lte")
    try:
        return _COMPARED[operator](value, wanted)
    except TypeError:  # a text and a number, or a field that is not there
        return False


def _check_labels(op: Op) -> None:
    """Refuse labels that would name another namespace when they are joined. A batch gets them unchecked.

    Raises:
        InvalidNamespaceError: a label is empty, is no text, or has a dot.
    """
    paths: list[Sequence[Any]] = []
    if isinstance(op, GetOp | PutOp):
        paths = [op.namespace]
    elif isinstance(op, SearchOp):
        paths = [op.namespace_prefix]
    elif isinstance(op, ListNamespacesOp):
        paths = [condition.path for condition in op.match_conditions or ()]
    for label in (label for path in paths for label in path):
        if not isinstance(label, str) or not label or "." in label:
            raise InvalidNamespaceError(f"a label of a namespace is a text without dots, and not empty: {label!r:.80}")


def _name(namespace: Sequence[str]) -> str:
    name = ".".join(namespace)
    return _bounded(name, "the labels of a namespace have")


def _key(key: str) -> str:
    return _bounded(str(key), "a key has")


def _bounded(text: str, what: str) -> str:
    if "\0" in text or len(text.encode(errors="replace")) > MAX_KEY:
        raise InvalidInput(f"{what} at most {MAX_KEY} bytes, and no NUL: {text!r:.80}")
    return text


def _to_json(op: PutOp) -> str:
    try:
        return json.dumps(dict(op.value or {}), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotSerializable(f"item {op.key!r} of {op.namespace} has no JSON form: {error}") from error


def _fields(row: tuple[Any, ...]) -> dict[str, Any]:
    namespace, key, value, created_at, updated_at = row
    return {
        "namespace": tuple(namespace.split(".")),
        "key": key,
        "value": json.loads(value),
        "created_at": datetime.fromtimestamp(created_at, UTC),
        "updated_at": datetime.fromtimestamp(updated_at, UTC),
    }
