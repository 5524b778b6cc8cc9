"""Import and export: rows of a table as files that others read, and files of others as rows.

    transfer.py  what `Table.export`, `Table.import_from` and `Store.import_table` do
    frame.py     the one form of rows in between: Arrow tables of steps, with what links them to episodes
    outflow.py   a table's rows in that form            inflow.py    rows of that form into a table
    formats.py   which formats there are; one file for each of them, imported when it is used
    aside.py     nothing half written                   damage.py    errors that name the file

    >>> replay.export("replay.parquet")
    50_000
    >>> again = store.import_table("again", "replay.parquet")
    >>> duckdb.sql("select avg(reward) from 'replay.parquet' where terminated")
"""

from conduit.exchange.formats import FORMATS

__all__ = ["FORMATS"]
