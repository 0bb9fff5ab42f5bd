"""Blobs: large data outside the database. A guest of the kernel.

* ``client``: the calls of `affinity.Client`.
* ``collection``, ``worker``: how blobs that no row names are deleted; the loop of a worker.
* ``store``: tables, verbs and their contract.

The stores, and the way of large payloads to them, are in `affinity.payloads`.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from affinity.payloads.blobs import BlobCollection, BlobFigures, BlobStore, StoredBlob
    from affinity.payloads.directory import DirectoryStore
    from affinity.payloads.objects import ObjectStore
    from affinity.payloads.vault import Blobs

__all__ = ["BlobCollection", "BlobFigures", "BlobStore", "Blobs", "DirectoryStore", "ObjectStore", "StoredBlob"]

_MODULES: typing.Final = {
    "BlobCollection": "blobs",
    "BlobFigures": "blobs",
    "BlobStore": "blobs",
    "Blobs": "vault",
    "DirectoryStore": "directory",
    "ObjectStore": "objects",
    "StoredBlob": "blobs",
}

if not typing.TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a name when it is first used: most databases have no blobs."""
        if name not in _MODULES:
            raise AttributeError(f"module 'affinity.blobs' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(f"affinity.payloads.{_MODULES[name]}"), name)
        if isinstance(value, type):
            importlib.import_module("affinity.field_words").show_in_help(value)
        return value
