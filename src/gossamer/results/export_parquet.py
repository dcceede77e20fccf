"""Exports the pages of any sink as one Parquet file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

# Imported first: it raises a ConfigError if pyarrow is missing.
from gossamer.storage import parquet_files  # isort: skip
import pyarrow as pa
import pyarrow.parquet as pq

from gossamer.results.export import Export

_BATCH = 4096
_GROUP_BYTES = 64 * 1024 * 1024
"""Max bytes of a row group in memory: the texts of pages may be long."""


def write_parquet(export: Export) -> int:
    """Write pages in the columns of the sink `parquet`; values that the job's files lack are null."""
    count = 0
    with export.output() as out, pq.ParquetWriter(out, parquet_files.PAGE_SCHEMA, **parquet_files.WRITING) as writer:
        group: list[pa.RecordBatch] = []
        for batch in _batches(export):
            group.append(batch)
            count += batch.num_rows
            if sum(map(len, group)) >= parquet_files.ROW_GROUP or sum(one.nbytes for one in group) >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group))
    return count


def _batches(export: Export) -> Iterator[pa.RecordBatch]:
    source = export.records()
    while some := list(islice(source, _BATCH)):
        yield parquet_files.page_batch(
            [
                # Files of lines have neither key nor token.
                parquet_files.LogRow(one.key or None, one.token or None, one.page, (), getattr(one, "warc", None))  # type: ignore[arg-type]
                for one in some
            ]
        )
