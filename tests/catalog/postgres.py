"""A PostgreSQL server of the tests' own: in a temporary directory, on a socket there, gone afterwards."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def program(name: str) -> str:
    """Where a program of PostgreSQL is, in PATH or where Debian keeps it; the test is skipped if it is nowhere."""
    places = [shutil.which(name), *sorted(map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), reverse=True)]
    found = next((place for place in places if place), None)
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed")
    return found


def unprivileged() -> dict[str, Any]:
    """As whom to run it: the server refuses to be root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres or nobody")


@contextmanager
def server(settings: str = "") -> Generator[str]:
    """The connection string of a new, empty server; skips the test by name where none can be started.

    settings: further options of the server, such as "-c wal_level=logical".
    """
    initdb, pg_ctl, who = program("initdb"), program("pg_ctl"), unprivileged()
    directory = Path(tempfile.mkdtemp(prefix="leafbeam-pg-"))  # not pytest's own directory, which others may not enter
    try:
        if who:
            os.chown(directory, who["user"], who["group"])
        data, options = directory / "data", f"-F -c listen_addresses='' -c unix_socket_directories='{directory}' {settings}"
        commands = [
            [initdb, "-D", data, "-A", "trust", "-U", "leafbeam", "-E", "UTF8", "--locale=C", "--no-sync"],
            [pg_ctl, "-D", data, "-l", directory / "log", "-w", "-o", options, "start"],
        ]
        for command in commands:
            ran = subprocess.run(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **who)
            if ran.returncode:
                pytest.skip(f"{Path(command[0]).name} cannot run here: {(ran.stderr.strip() or 'no reason given')[-200:]}")
        try:
            yield f"postgresql:///postgres?host={directory}&user=leafbeam"
        finally:
            subprocess.run(
                [pg_ctl, "-D", data, "-m", "immediate", "-w", "stop"],
                cwd=directory,
                stdout=subprocess.DEVNULL,
                check=True,
                **who,
            )
    finally:
        shutil.rmtree(directory)
