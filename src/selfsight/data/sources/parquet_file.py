"""Open Parquet files and check what their footers claim before anything is read by it."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow.parquet as pq

from selfsight.data.image_limits import UnreadableError, check_regular
from selfsight.data.sources.remote_files import File
from selfsight.errors import UserError

MAX_VALUES_PER_BYTE = 16  # of a file: more, in a column of images or labels, is damage
MAX_BATCH_BYTES = 1 << 28  # that are decompressed at once
MAX_COMPRESSION = 8  # of a dictionary, of which each row may be a copy


class ParquetError(UserError, UnreadableError):
    """A Parquet file cannot be read; the message names it."""


class RowGroup(NamedTuple):
    """How many rows a row group has, and how many of them to read at once."""

    rows: int
    batch: int


@contextlib.contextmanager
def open_table(
    file: File, metadata: pq.FileMetaData | None = None, *, dictionary: str | None = None
) -> Iterator[pq.ParquetFile]:
    """Open a file; a local one is memory-mapped, so that large row groups are paged in.

    The column `dictionary` is read as a dictionary, in which equal values are stored once.
    Whatever pyarrow raises while it is open becomes a ParquetError.
    """
    try:
        if file.system is None:
            check_regular(file.path)
        with pq.ParquetFile(
            file.path if file.system is None else file.open(),
            memory_map=file.system is None,
            pre_buffer=file.system is not None,
            metadata=metadata,
            read_dictionary=[dictionary] if dictionary else None,
            page_checksum_verification=True,
        ) as parquet:
            yield parquet
    except (UserError, UnreadableError) as error:
        if isinstance(error, UserError):
            raise
        raise ParquetError(f"{file.path} cannot be read: {error}.") from error
    except Exception as error:  # pyarrow raises any exception on damaged files
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ParquetError(f"{file.path} is not a readable Parquet file: {reason}.") from error


def check_row_groups(file: File, parquet: pq.ParquetFile, column: str) -> tuple[RowGroup, ...]:
    """The row groups as far as one column is concerned; raise if the footer cannot be right."""
    metadata = parquet.metadata
    most = 2**40 if file.system else MAX_VALUES_PER_BYTE * check_regular(file.path)
    groups, total = [], 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        chunks = [group.column(j) for j in range(group.num_columns)]
        parts = [c for c in chunks if f"{c.path_in_schema}.".startswith(f"{column}.")]
        values = max((c.num_values for c in parts), default=0)
        total += max(group.num_rows, values)
        if group.num_rows < 0 or min((c.num_values for c in parts), default=0) < 0 or total > most:
            raise ParquetError(
                f"{file.path} is damaged: its footer claims {group.num_rows:,} rows and {values:,} "
                f'values of column "{column}" in row group {i}. Write the file again.'
            )
        value_bytes = max((_value_bytes(c, group.num_rows) for c in parts), default=1)
        groups.append(RowGroup(group.num_rows, max(1, MAX_BATCH_BYTES // value_bytes)))
    if sum(group.rows for group in groups) != metadata.num_rows:
        raise ParquetError(
            f"{file.path} is damaged: its footer claims {metadata.num_rows:,} rows, but its row "
            f"groups have {sum(group.rows for group in groups):,}. Write the file again."
        )
    return tuple(groups)


def _value_bytes(chunk: "pq.ColumnChunkMetaData", rows: int) -> int:
    """About how many bytes a value takes in memory; a dictionary may hold one large value."""
    mean = chunk.total_uncompressed_size // max(1, rows)
    if not chunk.has_dictionary_page or chunk.dictionary_page_offset is None:
        return max(1, mean)
    dictionary = chunk.data_page_offset - chunk.dictionary_page_offset
    return max(1, mean, min(MAX_COMPRESSION * dictionary, chunk.total_uncompressed_size))
