"""Payloads at the edge of the database: encoded by a codec of the application, so that what is stored is unreadable;
and kept in a blob store, if they are large.

`PayloadCodec` and `Blobs` are what an application gives. `table` says what is encoded and what is not, and why. Without
a codec and a blob store none of this is used.
"""

from __future__ import annotations

from affinity.field_words import show_all_in_help
from affinity.payloads.blobs import BlobStore, StoredBlob
from affinity.payloads.contract import PayloadCodec, PayloadContext
from affinity.payloads.directory import DirectoryStore
from affinity.payloads.objects import ObjectStore
from affinity.payloads.opening import (
    check_blobs,
    check_codec,
    codec_from_environment,
    has_codec,
    open_coded,
    stored_by,
    with_payloads,
)
from affinity.payloads.vault import Blobs, Vault, vault_of

__all__ = [
    "BlobStore",
    "Blobs",
    "DirectoryStore",
    "ObjectStore",
    "PayloadCodec",
    "PayloadContext",
    "StoredBlob",
    "Vault",
    "check_blobs",
    "check_codec",
    "codec_from_environment",
    "has_codec",
    "open_coded",
    "stored_by",
    "vault_of",
    "with_payloads",
]

show_all_in_help(globals())
