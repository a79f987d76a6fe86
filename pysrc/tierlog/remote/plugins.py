"""Find object stores, storage managers and metadata managers of other packages.

The scheme of a URL names an object store. A setting names a manager, as ``module:Class`` or as
the name of an entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tierlog.config import Config
from tierlog.errors import ConfigError
from tierlog.remote.metadata.manager import RemoteLogMetadataManager
from tierlog.remote.segment.storage import ObjectStorageManager, RemoteStorageManager
from tierlog.remote.store.object_store import ObjectStore

__all__ = [
    "METADATA_GROUP",
    "STORAGE_GROUP",
    "STORE_GROUP",
    "find_store_opener",
    "make_metadata_manager",
    "make_storage_manager",
]

STORE_GROUP = "tierlog.object_stores"
STORAGE_GROUP = "tierlog.storage_managers"
METADATA_GROUP = "tierlog.metadata_managers"


def find_store_opener(scheme: str) -> Callable[..., ObjectStore] | None:
    """Return the function that opens URLs of `scheme`; None when no installed package has it."""
    found = _load_entry_point(STORE_GROUP, scheme)
    if found is None:
        return None

    def opened(url: str, **options: Any) -> ObjectStore:
        store: ObjectStore = found(url, **options)
        if ObjectStore not in type(store).__mro__:
            raise ConfigError(
                f"{scheme}: the entry point of {STORE_GROUP} made a {type(store).__name__}; "
                "expected a subclass of tierlog.ObjectStore"
            )
        return store

    return opened


def make_storage_manager(
    config: Config | None, store: ObjectStore, extra: Mapping[str, str] | None = None
) -> RemoteStorageManager:
    """Return the storage manager that the settings name, or else tierlog's own manager of `store`.
    ``extra`` are additional settings for a manager that the settings name."""
    name = None if config is None else config.plugin.storage_manager_class_name
    if config is None or name is None or _is_java_class(name):
        return ObjectStorageManager(store)
    own = config.settings_below(config.plugin.storage_manager_impl_prefix)
    manager: RemoteStorageManager = _make_manager(
        RemoteStorageManager, "remote.log.storage.manager.class.name", name, STORAGE_GROUP
    )
    manager.configure({"tierlog.store.url": store.url, **(extra or {}), **own})
    return manager


def make_metadata_manager(
    config: Config | None, store_url: str, extra: Mapping[str, str] | None = None
) -> RemoteLogMetadataManager | None:
    """Return the metadata manager that the settings name; None when they name none."""
    name = None if config is None else config.plugin.metadata_manager_class_name
    if config is None or name is None or _is_java_class(name):
        return None
    own = config.settings_below(config.plugin.metadata_manager_impl_prefix)
    manager: RemoteLogMetadataManager = _make_manager(
        RemoteLogMetadataManager, "remote.log.metadata.manager.class.name", name, METADATA_GROUP
    )
    manager.configure({"tierlog.store.url": store_url, **(extra or {}), **own})
    return manager


def _is_java_class(name: str) -> bool:
    """Return whether the value is a Java class, as in the settings of a Kafka broker."""
    return ":" not in name and "." in name


def _make_manager(kind: Any, setting: str, name: str, group: str) -> Any:
    """Return a new object of the class `name`, which is the value of `setting`. The class must be a
    subclass of `kind`."""
    manager = _find_class(setting, name, group)()
    if kind not in type(manager).__mro__:
        raise ConfigError(
            f"{setting}: {name} made a {type(manager).__name__}; expected a subclass of "
            f"tierlog.{kind.__name__}"
        )
    return manager


def _find_class(setting: str, name: str, group: str) -> Callable[..., Any]:
    """Return the class `name`, which is the value of `setting`: the name of an entry point or
    ``module:Class``."""
    if ":" not in name:
        from importlib.metadata import entry_points

        found = _load_entry_point(group, name)
        if found is None:
            known = ", ".join(sorted(one.name for one in entry_points(group=group))) or "none"
            raise ConfigError(
                f"{setting}: no installed package has an entry point {name} in the group {group}; "
                f"the names are {known}; expected one of these or module:Class"
            )
        return found
    module, _, attribute = name.partition(":")
    try:
        loaded: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{setting}: {name} cannot be loaded: {error}") from error
    return loaded


def _load_entry_point(group: str, name: str) -> Callable[..., Any] | None:
    # importlib.metadata is imported here, because its import takes long, and nearly all commands
    # work without it.
    from importlib.metadata import entry_points

    for found in entry_points(group=group, name=name):
        try:
            loaded: Callable[..., Any] = found.load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{group}: the entry point {name} = {found.value} cannot be loaded: {error}"
            ) from error
        return loaded
    return None
