"""Opens a provider with the codec of the application, and refuses a database that is encoded by another one."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Final, cast

from affinity.errors import CodecMismatch, InvalidOptions
from affinity.payloads.contract import PayloadCodec
from affinity.payloads.vault import Blobs, Vault
from affinity.provider import open_provider
from affinity.provider.contract import Provider

CODEC_VARIABLE: Final = "AFFINITY_CODEC"
"""Environment variable that names a codec, ``module:attribute``, for processes that are given none."""

BLOBS_VARIABLE: Final = "AFFINITY_BLOBS"
"""Environment variable that names `Blobs`, ``module:attribute``, for processes that are given none."""

BLOB_PATIENCE: Final = 30.0
"""Seconds for which a client tries to read from a blob store that fails."""


async def open_coded(
    url: str,
    codec: PayloadCodec | None,
    blobs: Blobs | None = None,
    *,
    is_worker: bool = False,
    **options: Any,
) -> Provider:
    """Open a provider whose payloads are encoded, and whose large payloads are in a blob store.

    Args:
        url: see `affinity.provider.open_provider`.
        codec: None: what `CODEC_VARIABLE` names. Without a codec the provider is as it is, unless its payloads are
            encoded. Then it reads no payload, and writes none.
        blobs: None: what `BLOBS_VARIABLE` names. Without a blob store nothing of it can be read.
        is_worker: mark the database as encoded; without a codec, refuse one that is.
        options: see `affinity.provider.open_provider`.

    Raises:
        CodecMismatch: the codec cannot decode what workers have written; or ``is_worker``, and it is missing.
        CodecFailed: it fails, as when its key service does not answer.
        InvalidOptions: the codec or the blob store cannot be imported, or is none; or ``is_worker``, and the store is
            missing.
        ProviderError: see `affinity.provider.open_provider`.
    """
    codec = check_codec(codec) or codec_from_environment()
    blobs = check_blobs(blobs) or blobs_from_environment()
    provider = await open_provider(url, **options)
    try:
        return await with_payloads(provider, codec, blobs, is_worker=is_worker)
    except BaseException:
        await provider.aclose()
        raise


async def with_payloads(
    provider: Provider, codec: PayloadCodec | None, blobs: Blobs | None, *, is_worker: bool = False
) -> Provider:
    """Return an open provider with its payloads encoded, and the large ones in a blob store.

    Args:
        provider: without a codec.
        codec: None: there is none.
        blobs: None: there is no blob store.
        is_worker: see `open_coded`.

    Raises:
        InvalidOptions, ProviderError: see `open_coded`.
    """
    identity = await provider.read_identity()
    if codec is None and blobs is None and not identity.encoded and not identity.offloaded:
        return provider
    from affinity.payloads.check_values import check_keys
    from affinity.payloads.wrapping import with_codec  # what is encoded: the records of all guests

    if codec is not None:
        await check_keys(provider, codec, identity, keep=is_worker)
    if is_worker:
        if codec is None and identity.encoded:
            raise CodecMismatch(f"the payloads of this database are encoded: give codec=, or set {CODEC_VARIABLE}")
        if blobs is None and identity.offloaded:
            raise InvalidOptions(
                f"large payloads of this database are in a blob store: give blobs=, or set {BLOBS_VARIABLE}"
            )
    if blobs is None:
        return with_codec(provider, codec, identity.name, writes_plain=not identity.encoded)
    offloads = identity.offloaded
    if blobs.over is not None and is_worker and not offloads:
        await provider.mark_offloaded()
        offloads = True
    # A client is the first to know: until a worker has the store too, its payloads stay in their rows.
    over = blobs.over if offloads else None
    patience = None if is_worker else BLOB_PATIENCE
    vault = Vault(blobs, identity.name, cast("Any", provider), codec, over=over, patience=patience)
    return with_codec(provider, codec, identity.name, vault, writes_plain=not identity.encoded)


def stored_by(provider: Provider) -> Provider:
    """Return the provider whose payloads are as they are stored."""
    return cast("Provider", getattr(provider, "stored", provider))


def has_codec(provider: Provider) -> bool:
    """Return whether a provider decodes."""
    return getattr(provider, "has_codec", False) is True


def codec_from_environment() -> PayloadCodec | None:
    """Return the codec that `CODEC_VARIABLE` names; None: it is not set.

    Raises:
        InvalidOptions: it cannot be imported, or is no codec.
    """
    return check_codec(_from_environment(CODEC_VARIABLE))


def blobs_from_environment() -> Blobs | None:
    """Return the `Blobs` that `BLOBS_VARIABLE` names; None: it is not set.

    Raises:
        InvalidOptions: it cannot be imported, or is no `Blobs`.
    """
    return check_blobs(_from_environment(BLOBS_VARIABLE))


def _from_environment(variable: str) -> Any:
    named = os.environ.get(variable, "")
    if not named:
        return None
    module, _, attribute = named.partition(":")
    if not module or not attribute:
        raise InvalidOptions(f"{variable} must be module:attribute, not {named!r}")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:
        raise InvalidOptions(f"{variable}={named} cannot be imported: {type(error).__name__}: {error}") from error


def check_codec(codec: PayloadCodec | None) -> PayloadCodec | None:
    """Return the codec, if it is one.

    Raises:
        InvalidOptions: it is something else.
    """
    if codec is None or (isinstance(codec, PayloadCodec) and not isinstance(codec, type)):
        return codec
    raise InvalidOptions(f"a codec has label, reads_plain, encode and decode: {type(codec).__name__} is none")


def check_blobs(blobs: Blobs | None) -> Blobs | None:
    """Return the blob store with its options.

    Raises:
        InvalidOptions: it is something else.
    """
    if blobs is None or isinstance(blobs, Blobs):
        return blobs
    raise InvalidOptions(f"blobs= takes Blobs(store), not a {type(blobs).__name__}")
