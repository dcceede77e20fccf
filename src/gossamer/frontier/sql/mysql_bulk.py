"""Many rows in one packet, as MariaDB takes them: it has no SQL to read then. MySQL gets them as text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from asyncmy import errors as faults

_TOO_MANY_PREPARED = 1461


class Bulk:
    """The statements of one connection that are prepared to be run over many rows."""

    def __init__(self) -> None:
        self._prepared: dict[str, Any] = {}
        self._refused = False

    def forget(self) -> None:
        """There is a new connection, which has nothing prepared."""
        self._prepared.clear()
        self._refused = False

    async def run(self, connection: Any, text: str, rows: Sequence[Sequence[Any]], *, seconds: float) -> int | None:
        """Run a statement over all rows; how many it has changed. None if nothing was done: it has to be said in SQL.

        That is so where the server does not know how, or where a column is NULL in every row."""
        if self._refused:
            return None
        try:
            async with asyncio.timeout(seconds):
                if text not in self._prepared:
                    self._prepared[text] = await connection.prepare(text)
                result = await self._prepared[text].execute_bulk(rows)
        except faults.NotSupportedError:
            # Raised by the driver before it sends anything.
            self._refused = True
            return None
        except faults.OperationalError as error:
            if error.args[:1] != (_TOO_MANY_PREPARED,):
                raise
            self._refused = True
            return None
        except ValueError:
            return None
        return int(result.affected_rows)


def size(rows: Sequence[Sequence[Any]]) -> int:
    """Bytes of a packet with these rows, roughly; their last columns may be long."""
    width = len(rows[0])
    return 10 * width * len(rows) + sum([len(row[5]) + len(row[7] or b"") for row in rows] if width > 5 else ())
