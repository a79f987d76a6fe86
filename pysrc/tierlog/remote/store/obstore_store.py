"""Cloud and in-memory stores, through obstore: `s3://`, `gs://`, `az://` and `memory:///`.

Large objects are uploaded in parts, a few at a time, so memory is bounded. A failure aborts the
upload. Small objects take one conditional request.

Errors and `repr` never show credentials. Of obstore's message, only the first line is kept, without
query strings and without any value that is configured as a secret.

A cloud store may be pickled. The copy opens its own connections from the URL and the given options,
so a pickle contains credentials that were given as options. obstore hangs in a child process that
was forked after the first use of obstore, so such a child may not use stores. Use the spawn or
forkserver start method, or open stores only in the children.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore import exceptions as obstore_errors
from obstore import store as obstore_stores

from tierlog._core import join_pooled
from tierlog.errors import ConfigError, RemoteStorageError, TierlogError
from tierlog.log.files import printable
from tierlog.remote.store.aws_profile import profile_options
from tierlog.remote.store.fork_guard import ForkGuard
from tierlog.remote.store.object_store import (
    LARGE_READ_BYTES,
    ObjectInfo,
    ObjectStore,
    already_exists,
    check_key,
    check_prefix,
    check_range,
    counted,
    holds_exactly,
    not_found,
    storage_error,
)
from tierlog.remote.store.waits import store_waits

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from typing_extensions import Buffer

__all__ = ["ObstoreStore", "open_cloud_store", "open_memory_store"]

# Four parts in flight, one part being filled and one part that the caller holds take less than 64
# MiB.
_PART_BYTES = 8 << 20
_PARTS_IN_FLIGHT = 4
_LIST_PAGE = 1_000
# Size of the chunks of a large read. The size is large enough for few calls and small enough for
# the CPU cache.
_PIECE_BYTES = 256 << 10
_MAX_MESSAGE = 400

_SECRET_NAME = re.compile(r"secret|token|password|credential|account_key|access_key|sas", re.I)
_QUERY = re.compile(r"\?[^\s\"'<>)]+")

_ERROR_RETRIABLE: Mapping[type[Exception], bool] = {
    obstore_errors.GenericError: True,
    obstore_errors.JoinError: True,
    obstore_errors.BaseError: True,
    obstore_errors.PermissionDeniedError: False,
    obstore_errors.UnauthenticatedError: False,
    obstore_errors.InvalidPathError: False,
    obstore_errors.NotSupportedError: False,
    obstore_errors.AlreadyExistsError: False,
    obstore_errors.PreconditionError: False,
    obstore_errors.NotModifiedError: False,
    obstore_errors.UnknownConfigurationKeyError: False,
}
# These texts replace obstore's messages. The texts say what failed and what to do.
_NO_CREDENTIALS = {
    "s3": "no credentials found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
    "or put them into ~/.aws/credentials",
    "gs": "no credentials found: set GOOGLE_APPLICATION_CREDENTIALS to the file of a service "
    "account, or run `gcloud auth application-default login`",
    "az": "no credentials found: set AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN or "
    "AZURE_CLIENT_ID, AZURE_CLIENT_SECRET and AZURE_TENANT_ID, or AZURE_USE_AZURE_CLI=true",
}
# Address from which a cloud machine gets its own credentials. obstore asks it when no credentials
# are set.
_METADATA_SERVICE = "//169.254.169.254/"
_DENIED = "access is denied: the credentials need rights on this bucket"
# The response to a HEAD request has no body with details.
_DENIED_WITHOUT_WORDS = "403 Forbidden:"
_NOT_IMPLEMENTED = (
    "the store does not implement this request: tierlog needs conditional puts (If-None-Match: *), "
    "and the deletion of many objects at once unless AWS_DISABLE_BULK_DELETE=true"
)
_CAUSES = {
    "<Code>NoSuchBucket<": "there is no such bucket: create it or correct the URL",
    "<Code>SignatureDoesNotMatch<": "the secret key is wrong: check AWS_SECRET_ACCESS_KEY",
    "<Code>InvalidAccessKeyId<": "the access key is unknown: check AWS_ACCESS_KEY_ID",
    "<Code>AccessDenied<": _DENIED,
    "<Code>NotImplemented<": _NOT_IMPLEMENTED,
}
_Result = TypeVar("_Result")


_fork_guard = ForkGuard("an object store", "would hang")


class ObstoreStore(ObjectStore):
    """An `ObjectStore` over a store of obstore. `open_store` creates it."""

    def __init__(
        self,
        store: obstore_stores.ObjectStore,
        url: str,
        *,
        secrets: Iterable[str] = (),
        timeout: object = None,
        reopen: Callable[[], ObstoreStore] | None = None,
    ) -> None:
        seconds = f"{timeout.total_seconds():g} s" if isinstance(timeout, timedelta) else timeout
        self._deadline = f"; a request ends after {seconds}" if timeout else ""
        self._store = store
        self._url = url
        self._secrets = tuple(secrets)
        self._reopen = reopen

    def __repr__(self) -> str:
        return f"ObstoreStore({self._url!r})"

    def __reduce__(self) -> tuple[object, ...]:
        if self._reopen is None:
            raise TypeError(f"{self._url} exists in this process only and cannot be pickled")
        return self._reopen, ()

    @property
    def url(self) -> str:
        return self._url

    @property
    def is_local(self) -> bool:
        # Only an in-memory store has no function to reopen it.
        return self._reopen is None

    # -- reading

    def get_range(self, key: str, start_position: int, size_bytes: int) -> Buffer:
        check_range(start_position, size_bytes)
        end_position = start_position + size_bytes
        with self._storage_errors(check_key(key)):
            if size_bytes < LARGE_READ_BYTES:
                data = memoryview(
                    obstore.get_range(self._store, key, start=start_position, end=end_position)
                )
            else:
                data = self._get_large(key, start_position, end_position)
        if not 0 < len(data) <= size_bytes:
            raise storage_error(
                f"{self._url}: {key}: expected 1 to {size_bytes} bytes from position "
                f"{start_position}, the store sent {len(data)}"
            )
        return data

    def _get_large(self, key: str, start_position: int, end_position: int) -> memoryview:
        """Read into the buffer pool, because obstore's own buffers come from the allocator."""
        found = obstore.get(self._store, key, options={"range": (start_position, end_position)})
        first, last = found.range
        chunks = found.stream(min_chunk_size=_PIECE_BYTES)
        return memoryview(join_pooled(chunks, min(last - first, end_position - start_position)))

    def head(self, key: str) -> ObjectInfo:
        with self._storage_errors(check_key(key)):
            return _object_info(obstore.head(self._store, key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        with self._storage_errors(f"list {folder}".rstrip()):
            pages = obstore.list(self._store, folder or None, chunk_size=_LIST_PAGE)
        while True:
            with self._storage_errors(f"list {folder}".rstrip()):
                page = next(pages, None)
            if page is None:
                return
            yield from (_object_info(meta) for meta in page if _is_key(meta["path"]))

    def folders(self, prefix: str = "") -> Iterable[str]:
        folder = check_prefix(prefix)
        with self._storage_errors("list the folders"):
            found = obstore.list_with_delimiter(self._store, folder or None)["common_prefixes"]
        return [name.rpartition("/")[2] for name in found if _is_key(name)]

    # -- writing

    def put_bytes(self, key: str, data: Buffer, *, overwrite: bool = False) -> None:
        with self._storage_errors(check_key(key)):
            try:
                obstore.put(
                    self._store,
                    key,
                    bytes(data),
                    mode="overwrite" if overwrite else "create",
                    use_multipart=False,
                )
                return
            except obstore_errors.AlreadyExistsError:
                pass
        if not holds_exactly(self, key, data):
            raise already_exists(self._url, key)

    def put_stream(
        self, key: str, chunks: Iterable[Buffer], size_bytes: int, *, overwrite: bool = False
    ) -> None:
        check_key(key)
        checked = counted(chunks, size_bytes, key)
        if size_bytes <= _PART_BYTES:
            self.put_bytes(key, b"".join(checked), overwrite=overwrite)
            return
        # Multipart uploads cannot be conditional. Keys contain a fresh uuid, so this check only
        # has to catch a mistake, not a race.
        if not overwrite and self._exists(key):
            raise already_exists(self._url, key)
        source = _Source(checked)
        try:
            with self._storage_errors(key, is_one_request=False):
                obstore.put(
                    self._store,
                    key,
                    iter(source),
                    use_multipart=True,
                    chunk_size=_PART_BYTES,
                    max_concurrency=_PARTS_IN_FLIGHT,
                )
        except RemoteStorageError:
            if source.failure is not None:
                raise source.failure from None
            raise

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        with self._storage_errors(check_key(key)):
            try:
                obstore.put(self._store, key, bytes(data), mode="create", use_multipart=False)
            except obstore_errors.AlreadyExistsError:
                return False
        return True

    def delete(self, key: str) -> None:
        with self._storage_errors(check_key(key)):
            try:
                obstore.delete(self._store, key)
            except FileNotFoundError:
                return

    def _exists(self, key: str) -> bool:
        with self._storage_errors(key):
            try:
                obstore.head(self._store, key)
            except FileNotFoundError:
                return False
        return True

    # -- errors

    @contextmanager
    def _storage_errors(self, what: str, *, is_one_request: bool = True) -> Iterator[None]:
        """Convert obstore's exceptions into tierlog's exceptions. `what` is the key or the call."""
        _fork_guard.enter(self._url)
        request = f"{self._url} ({what}{self._deadline})"
        try:
            with store_waits.waiting(request) if is_one_request else nullcontext():
                yield
        except TierlogError:
            raise
        except FileNotFoundError as error:
            raise not_found(self._url, what, self._hide_secrets(error)) from None
        except (obstore_errors.BaseError, ValueError) as error:
            raise self._to_storage_error(what, error) from None

    def _to_storage_error(self, what: str, error: Exception) -> RemoteStorageError:
        text = str(error)
        if _METADATA_SERVICE in text:
            return storage_error(f"{self._url}: {_NO_CREDENTIALS[self._url.partition(':')[0]]}")
        cause = next((advice for code, advice in _CAUSES.items() if code in text), "")
        if cause:
            return storage_error(f"{self._url}: {cause}", retriable=False)
        message = self._hide_secrets(error)
        if message.endswith(_DENIED_WITHOUT_WORDS):
            message = _DENIED
        retriable = _ERROR_RETRIABLE.get(type(error), False)
        return storage_error(f"{self._url}: {what}: {message}", retriable=retriable)

    def _hide_secrets(self, error: Exception) -> str:
        return clean_message(str(error), chain(self._secrets, _find_secrets(os.environ)))


def clean_message(message: str, secrets: Iterable[str]) -> str:
    """Return one short line without obstore's debug dump, query strings and secret values."""
    line = " ".join(message.split("\n\nDebug source", 1)[0].split())
    line = _QUERY.sub("?...", line)
    for secret in secrets:
        line = line.replace(secret, "***")
    return line if len(line) <= _MAX_MESSAGE else line[:_MAX_MESSAGE] + "..."


def _find_secrets(settings: Mapping[str, object]) -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, str) and len(value) >= 4 and _SECRET_NAME.search(name):
            yield value


class _Source:
    """The caller's chunks, which obstore reads, and the exception that their iterator raised."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[Buffer]:
        try:
            yield from self._chunks
        except BaseException as error:
            self.failure = error
            raise


def _is_key(path: str) -> bool:
    """Return whether a listed name can be a key of tierlog. The bucket may have objects of other
    programs."""
    try:
        check_key(path)
    except ValueError:
        return False
    return True


def _object_info(meta: ObjectMeta) -> ObjectInfo:
    return ObjectInfo(
        key=meta["path"],
        size_bytes=meta["size"],
        etag=meta["e_tag"],
        last_modified_ms=int(meta["last_modified"].timestamp() * 1000),
    )


# -- opening

_memory_stores: dict[str, ObstoreStore] = {}
_memory_lock = threading.Lock()


def open_memory_store(url: str) -> ObstoreStore:
    """Return this process's store for `url`. Equal URLs give the same store."""
    _fork_guard.enter(url)
    with _memory_lock:
        if url not in _memory_stores:
            _memory_stores[url] = ObstoreStore(obstore_stores.MemoryStore(), url)
        return _memory_stores[url]


class _Reopen:
    """Opens the same cloud store in another process; its repr shows no options."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = dict(options)

    def __call__(self) -> ObstoreStore:
        return open_cloud_store(self._url, self._options)


# Prefix of the environment variables that obstore reads. The rest of a variable's name is an
# option.
_ENVIRONMENT = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "default_headers",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    }
)
_RETRY_OPTIONS = frozenset({"backoff", "max_retries", "retry_timeout"})


def open_cloud_store(url: str, options: Mapping[str, Any]) -> ObstoreStore:
    """Open a store on S3, GCS or Azure. `options` are options of obstore (``endpoint``, ``region``,
    ``access_key_id``, ``client_options``, ``retry_config`` ...). Missing options are read from the
    provider's environment variables, and for S3 also from the profile in ``~/.aws``.

    Unless the options say otherwise, a request ends after 60 s, and retries end after 60 s. Raises
    ConfigError for an option or URL that obstore refuses.
    """
    _fork_guard.enter(url)
    added = profile_options(os.environ, options) if url.startswith("s3:") else {}
    secrets = (*_find_secrets(options), *_find_secrets(added))
    settings = _merge_settings(url, {**added, **options})
    _check_encryption(url, settings)
    _check_conditional_put(url, settings)
    from_url: Callable[..., obstore_stores.ObjectStore] = obstore_stores.from_url
    try:
        store = from_url(url, **settings)
    except (obstore_errors.BaseError, ValueError, TypeError) as error:
        known = chain(secrets, _find_secrets(os.environ))
        raise ConfigError(f"{url}: {clean_message(str(error), known)}") from None
    timeout = settings["client_options"]["timeout"]
    reopen = _Reopen(url, options)
    return ObstoreStore(store, url, secrets=secrets, timeout=timeout, reopen=reopen)


_ENDPOINTS = ("ENDPOINT_URL", "ENDPOINT", "ENDPOINT_URL_S3", "BASE_URL", "STORAGE_ENDPOINT")


def _check_encryption(url: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError for an http:// endpoint, unless the settings allow http."""
    prefix = _variable_prefix(url)
    names = [prefix + name for name in _ENDPOINTS]
    # An option has its variable's name in lower case, with or without the prefix.
    options = [option for name in names for option in (name, name.removeprefix(prefix))]
    places = [(name.lower(), settings.get(name.lower())) for name in options]
    places += [(name, os.environ.get(name)) for name in names]
    allowed = str(settings["client_options"].get("allow_http", "")).lower() in ("true", "1")
    for name, endpoint in places:
        if str(endpoint or "").lower().startswith("http://") and not allowed:
            raise ConfigError(
                f"{url}: expected an https:// endpoint, found {name} = {printable(str(endpoint))}; "
                f"to connect without encryption, set {prefix}ALLOW_HTTP=true"
            )


def _check_conditional_put(url: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError when conditional puts are disabled, because then all puts of tierlog would
    fail."""
    names = ("conditional_put", "aws_conditional_put")
    found = [settings.get(name) for name in names] + [os.environ.get("AWS_CONDITIONAL_PUT")]
    if url.startswith("s3:") and "disabled" in found:
        raise ConfigError(
            f"{url}: expected conditional puts, which tierlog needs, found AWS_CONDITIONAL_PUT = "
            "disabled; remove the setting"
        )


def _merge_settings(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `options`, the environment's client options and the default deadlines."""
    for name in options:
        plain = name.lower().removeprefix(_variable_prefix(url).lower())
        # At the top level, obstore panics on these options instead of refusing them.
        if plain in _CLIENT_OPTIONS or plain == "config":
            raise ConfigError(f"{url}: {name} belongs in client_options")
    client = {"timeout": timedelta(seconds=60), "connect_timeout": timedelta(seconds=5)}
    retry = {"max_retries": 6, "retry_timeout": timedelta(seconds=60)}
    return {
        **options,
        "client_options": {
            **client,
            **_environment_client_options(url),
            **_option_table(url, options, "client_options", _CLIENT_OPTIONS),
        },
        "retry_config": {**retry, **_option_table(url, options, "retry_config", _RETRY_OPTIONS)},
    }


def _variable_prefix(url: str) -> str:
    return _ENVIRONMENT[url.partition(":")[0]]


def _environment_client_options(url: str) -> dict[str, str]:
    """Return the client options in the environment. obstore ignores these variables when any client
    option is given."""
    prefix = _variable_prefix(url)
    names = {name: os.environ.get(prefix + name.upper()) for name in _CLIENT_OPTIONS}
    return {name: value for name, value in names.items() if value is not None}


def _option_table(
    url: str, options: Mapping[str, Any], name: str, known: frozenset[str]
) -> Mapping[str, Any]:
    table = options.get(name, {})
    if not isinstance(table, Mapping) or not known.issuperset(table):
        raise ConfigError(f"{url}: expected a dict {name} with some of {sorted(known)}")
    return table
