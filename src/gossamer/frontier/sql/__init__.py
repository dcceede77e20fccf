"""A frontier in PostgreSQL, MariaDB or MySQL: one schedule, two dialects."""

from __future__ import annotations

from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.job import open_sql
from gossamer.frontier.sql.move import spread_sql
from gossamer.frontier.sql.several import compact_databases, open_databases

__all__ = ["SqlFrontier", "compact_databases", "open_databases", "open_sql", "spread_sql"]
