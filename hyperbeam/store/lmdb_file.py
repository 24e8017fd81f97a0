"""Opening an LMDB file so that what is wrong with it is said in words."""

from __future__ import annotations

import errno
from pathlib import Path

import lmdb

from ..errors import ConfigError

SCHEMA = b"1"
_PAGE = 4096


def open_environment(
    path: Path, *, map_size: int, max_readers: int, sync: bool
) -> tuple[lmdb.Environment, lmdb._Database]:
    """The environment in folder `path`, made if need be, and its database of records.

    Stale readers are cleared. `ConfigError` for a folder that cannot be written, a file
    that is damaged, of another program or of another schema version, and a full disk.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = lmdb.open(
            str(path),
            map_size=_round_up(map_size),
            max_readers=max_readers,
            max_dbs=1,
            max_spare_txns=1,
            sync=sync,
            mode=0o600,
        )
    except (lmdb.Error, OSError) as error:
        raise _explained(path, error) from error
    try:
        environment.reader_check()
        _check_length(path, environment)
        with environment.begin(write=True) as txn:
            _check_schema(path, txn)
            records = environment.open_db(b"data", txn=txn)
        # Takes this process's place in the table of readers, so that no later read lacks one.
        with environment.begin():
            return environment, records
    except lmdb.Error as error:
        environment.close()
        raise _explained(path, error) from error
    except ConfigError:
        environment.close()
        raise


def grow(environment: lmdb.Environment, needed: int) -> None:
    """Make the map at least twice as large, and roomy enough for `needed` bytes more.

    The process must have no transaction open.
    """
    size = environment.info()["map_size"]
    environment.set_mapsize(_round_up(max(size * 2, size + 2 * needed)))


def _round_up(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _check_length(path: Path, environment: lmdb.Environment) -> None:
    """Refuse a file that was cut: reading past its end would kill the process (SIGBUS)."""
    needed = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    length = (path / "data.mdb").stat().st_size
    if length < needed:
        raise ConfigError(
            f"the store file {path / 'data.mdb'} is cut short: {length} bytes of {needed}. "
            "Restore it from a backup, or move it away to begin with an empty store"
        )


def _check_schema(path: Path, txn: lmdb.Transaction[bytes]) -> None:
    schema = txn.get(b"schema")
    if schema is None:
        if txn.stat()["entries"]:
            raise ConfigError(
                f"{path} holds an LMDB file of another program: give the store another folder"
            )
        txn.put(b"schema", SCHEMA)
    elif schema != SCHEMA:
        raise ConfigError(
            f"the store {path} has schema version {schema[:16].decode('ascii', 'replace')}, "
            f"this program reads version {SCHEMA.decode()}: use the version that wrote it, "
            "or give the store another folder"
        )


def _explained(path: Path, error: lmdb.Error | OSError) -> ConfigError:
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", 0)
    if isinstance(error, (lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.CorruptedError)):
        return ConfigError(
            f"the store file {path / 'data.mdb'} is damaged or no LMDB file. "
            "Restore it from a backup, or move it away to begin with an empty store"
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ConfigError(f"the store folder {path} cannot be written by this user: {error}")
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ConfigError(f"no room on the disk for the store {path}: {error}")
    if isinstance(error, lmdb.ReadersFullError):
        return ConfigError(
            f"as many processes as max_readers allows have the store {path} open: raise "
            "max_readers and restart them all, or try again in a minute if one was killed"
        )
    if "already open in this process" in str(error):
        return ConfigError(
            f"the store {path} is open in this process already: give each node a home of its own"
        )
    return ConfigError(f"cannot open the store {path}: {error}")
