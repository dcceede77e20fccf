"""A frontier in PostgreSQL, MariaDB or MySQL: one schedule, two dialects."""

from __future__ import annotations

from gossamer.frontier.sql.frontier import SqlFrontier
from gossamer.frontier.sql.job import open_sql

__all__ = ["SqlFrontier", "open_sql"]
