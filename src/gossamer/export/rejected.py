"""The export of items that were kept aside."""

from __future__ import annotations

import msgspec

from gossamer.export import Export
from gossamer.export.stored import nothing_in
from gossamer.sink import segments
from gossamer.sink.aside import REJECTED


def write_rejected(export: Export) -> int:
    """The lines of items-rejected.jsonl; of a fleet's job, what its workers kept aside."""
    count = 0
    with export.output() as out:
        if (export.folder / segments.FOLDER).is_dir():
            for record in export.records(with_items=True):
                for one in record.rejected:
                    out.write(msgspec.json.encode(one) + b"\n")
                    count += 1
            return count
        path = export.folder / REJECTED
        if not path.exists():
            if not export.folder.is_dir():
                raise nothing_in(export.folder)
            return 0
        with path.open("rb") as file:
            for line in file:
                out.write(line)
                count += 1
    return count
