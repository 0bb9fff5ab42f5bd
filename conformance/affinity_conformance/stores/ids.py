"""Ids: every id that `affinity.limits.check_id` accepts can be stored, and is distinct from all others."""

from __future__ import annotations

from typing import Final

from affinity import SessionStore
from affinity.limits import MAX_ID_BYTES, check_id
from affinity.session import SessionFilter
from affinity_conformance.stores.base import StoreRules, ids, loaded, state

NAMES: Final = {
    "slash": "a/b",
    "no slash": "ab",
    "case": "AB",
    "backslash": "a\\b",
    "parent directory": "..",
    "directory": ".",
    "path": "../../etc/passwd",
    "root": "/",
    "percent": "a%b",
    "underscore": "a_b",
    "any letter": "axb",
    "percents": "%",
    "pattern": "a*b?[c]",
    "quotes": """it's "quoted" `so` $$ ; --""",
    "braces": "{a},{0}%s%(x)s:x@y",
    "null": "NULL",
    "space": " ",
    "spaces": " ab ",
    "encoded": "a%2Fb",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "dotless": "\u0131I\u0130i",
    "sharp": "ß",
    "sharp spelt": "ss",
    "latin": "x" * MAX_ID_BYTES,
    "latin less one": "x" * (MAX_ID_BYTES - 1),
    "greek": "ψ" * (MAX_ID_BYTES // 2),
    "arabic": "س" * (MAX_ID_BYTES // 2),
    "hindi": "क्ष" * 28,
    "chinese": "漢" * (MAX_ID_BYTES // 3) + "x",
    "emoji": "🙂" * (MAX_ID_BYTES // 4),
    "last": "\U0010fffd",
}


class StoreIdRules(StoreRules):
    """Sessions whose ids have unusual characters or lengths."""

    async def test_any_valid_id_names_a_record(self, store: SessionStore) -> None:
        """It is written, read, listed and deleted under this id."""
        for name in NAMES.values():
            check_id(name, "session id")
            await store.save(state(name, b"1"), idempotency_key=name)
            await store.save(state(name, b"2", parent=name, kind=name, name=name), expected_version=1)
            record = await loaded(store, name)
            assert (record.session_id, record.state, record.version) == (name, b"2", 2)
            assert (record.metadata.parent, record.metadata.kind, record.metadata.name) == (name, name, name)
            assert await ids(store, SessionFilter(parent=name, kind=name, name=name, prefix=name)) == [name]
            assert list(await store.delete([name], families={name: name}, versions={name: 2})) == [name]
            assert await store.load(name) is None, name

    async def test_different_ids_name_different_records(self, store: SessionStore) -> None:
        """Each has its own record while others are written and deleted."""
        names = list(NAMES.values())
        for name in names:
            assert await store.save(state(name, name.encode())) == 1
        assert sorted(await ids(store)) == sorted(names)
        for name in names[::2]:
            assert list(await store.delete([name])) == [name]
        assert sorted(await ids(store)) == sorted(names[1::2])
        assert [(await loaded(store, name)).state for name in names[1::2]] == [name.encode() for name in names[1::2]]

    async def test_a_prefix_is_compared_literally(self, store: SessionStore) -> None:
        """The listing for an id of the suite, or a prefix of one, has exactly the ids that begin with it."""
        names = list(NAMES.values())
        for name in names:
            await store.save(state(name))
        beginnings = {name[:length] for name in names for length in (1, 2, 3, len(name))}
        for prefix in sorted(beginnings | {"no such", "A", "a%", "a_", "é", "e"}):
            found = await ids(store, SessionFilter(prefix=prefix))
            assert sorted(found) == sorted(name for name in names if name.startswith(prefix)), prefix
