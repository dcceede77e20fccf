"""The databases of a job: one connection to each, by the names that are written into the job's record."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import msgspec

from gossamer.dsn import hosts_of
from gossamer.errors import ConfigError, JobMissing
from gossamer.frontier.sql.database import Database, Dialect, digest
from gossamer.frontier.sql.job import dialect_of, make_job, understood
from gossamer.settings import Settings

_KINDS = {"postgres": "postgresql", "mariadb": "mysql"}
_placement = msgspec.json.Decoder(list[str]).decode


class SqlJobRecord(NamedTuple):
    """A job's record: what all shards share, and the server of each. In the record "" is the server that has it."""

    settings: Settings
    secret: bytes
    placement: list[str]
    is_made: bool


class Databases:
    """Connections to the servers of these addresses, opened when they are needed."""

    def __init__(self, url: str) -> None:
        self._opened: dict[str, Database] = {}
        self._urls: dict[str, str] = {}
        for one in addresses(url):
            dialect = dialect_of(one)
            if dialect.server in self._urls:
                raise ConfigError(f"{dialect.server} is named twice", hint="give each database once")
            self._urls[dialect.server] = one
            self._opened[dialect.server] = Database(dialect)
        self.names = list(self._urls)
        if len({name.partition("://")[0] for name in self.names}) > 1:
            raise ConfigError(
                "the databases of a job are of one kind", hint="either all postgresql:// or all mysql:// addresses"
            )

    def at(self, name: str) -> Database:
        """The connection to a server."""
        if name not in self._opened:
            url = like(self._urls[self.names[0]], name)
            self._urls[name] = url
            self._opened[name] = Database(dialect_of(url))
        return self._opened[name]

    async def read(self, name: str, job: str) -> SqlJobRecord | None:
        """A job's record on one server; None if it is not there."""

        async def work(db: Dialect) -> SqlJobRecord | None:
            for row in await db.fetch("read_root", digest(job)):
                settings, secret, _ = understood(row[:4], job)
                placement = _placement(row[4]) if row[4] else [""]
                return SqlJobRecord(settings, secret, [place or name for place in placement], bool(row[5]))
            return None

        try:
            return await self.at(name).run(work)
        except JobMissing:
            # No tables at all.
            return None

    async def find(self, job: str) -> SqlJobRecord | None:
        """A job's record on the first server that has it."""
        for name in self.names:
            if (root := await self.read(name, job)) is not None:
                return root
        return None

    async def write(self, name: str, job: str, root: SqlJobRecord) -> SqlJobRecord:
        """See that a server has a job's record, with these settings; the record, which may have been there before."""
        database = self.at(name)
        text = msgspec.json.encode(root.placement).decode()
        await make_job(database, job, root.settings, root.secret)
        await database.run(lambda db: db.fetch("propose_root", digest(job), text))
        found = await self.read(name, job)
        if found is None:
            raise JobMissing(f"job {job!r} is gone from {name}", hint="did somebody empty the database?")
        return found

    async def place(self, name: str, job: str, placement: list[str]) -> None:
        """Tell a server where the shards are, all of which have been made."""
        text = msgspec.json.encode(placement).decode()
        await self.at(name).run(lambda db: db.fetch("place_root", digest(job), text))

    async def aclose(self) -> None:
        """Close all connections."""
        for database in self._opened.values():
            await database.aclose()


def addresses(text: str) -> list[str]:
    """The addresses of a frontier in several databases: they are separated by commas."""
    return re.split(r",(?=[a-z+]+://)", text)


def like(url: str, name: str) -> str:
    """The address of a server by its name, with the user, the password and the options of another's."""
    given = urlsplit(url)
    options = dict(parse_qsl(given.query))
    credentials, at, _ = given.netloc.rpartition("@")
    scheme, _, rest = name.partition("://")
    place, _, database = rest.rpartition("/")
    if _KINDS.get(given.scheme, given.scheme) != scheme:
        raise ConfigError(f"a shard is on {name}, which was not named", hint="give the addresses of all databases")
    for option in ("host", "port", "socket", "unix_socket"):
        options.pop(option, None)
    host, _, port = place.rpartition(":")
    if scheme == "postgresql":
        hosts, ports = hosts_of(place)
        options |= {"host": ",".join(hosts)} | ({"port": ",".join(map(str, ports))} if ports else {})
        place = ""
    elif place.startswith("/"):
        options["socket"] = place
        place = ""
    elif ":" in host:
        place = f"[{host}]:{port}"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{credentials}{at}{place}/{quote(database)}{query}"
