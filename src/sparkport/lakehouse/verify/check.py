"""A whole lakehouse, or one table of it, checked from the catalog's rows down. It changes nothing, and servers go on.

A table that is changed meanwhile may lose files that were looked for. So what is wrong with a table counts only if it
is wrong with what the catalog points to afterwards, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparkport.errors import SchemaNotFound, SparkportError, TableNotFound
from sparkport.lakehouse.backup.backup import Tell
from sparkport.lakehouse.backup.contents import Contents, Pointer, read_contents
from sparkport.lakehouse.backup.held import HeldCatalog
from sparkport.lakehouse.backup.reach import Kind
from sparkport.lakehouse.iceberg.metadata import TableMetadata, load, parse
from sparkport.lakehouse.names import TableName
from sparkport.lakehouse.verify.findings import Finding, Findings, Wrong
from sparkport.lakehouse.verify.journal import check_journal
from sparkport.lakehouse.verify.table import check_table

__all__ = ["CheckReport", "check"]

_LOOKS = 5


@dataclass(frozen=True, slots=True)
class CheckReport:
    """``files`` are how many were looked at, entries of the journal included."""

    tables: int
    files: int
    found: tuple[Finding, ...]


def check(
    catalog: HeldCatalog, table: TableName | None = None, *, deep: bool = False, tell: Tell | None = None
) -> CheckReport:
    """``table``: only this one, and whether it keeps its keys. ``deep`` reads all rows, too."""
    tell = tell or (lambda *_: None)
    contents = read_contents(catalog.database, catalog.name)
    pointers = [pointer for pointer in contents.pointers if table is None or _is(pointer.table, table)]
    if table is not None and not pointers:
        raise _not_found(contents, table)
    found: list[Findings] = []
    for number, pointer in enumerate(sorted(pointers, key=lambda pointer: pointer.table)):
        tell(f"checking '{pointer.table}'", number, len(pointers))
        found.append(_settled(catalog, pointer, deep=deep, keys=deep or table is not None))
    if table is None:
        found.append(_journal(catalog))
    return CheckReport(
        tables=len(pointers),
        files=sum(findings.files for findings in found),
        found=tuple(sorted({finding for findings in found for finding in findings.found})),
    )


def _is(table: TableName, wanted: TableName) -> bool:
    return tuple(part.casefold() for part in table) == tuple(part.casefold() for part in wanted)


def _not_found(contents: Contents, table: TableName) -> Exception:
    schemas = {row[0].casefold() for row in contents.rows["iceberg_namespace_properties"]}
    return TableNotFound(*table) if table.schema.casefold() in schemas else SchemaNotFound(table.schema)


def _settled(catalog: HeldCatalog, pointer: Pointer, *, deep: bool, keys: bool) -> Findings:
    location = pointer.location
    for _ in range(_LOOKS):
        if pointer.is_view:
            findings = _check_view(catalog, pointer, location)
        else:
            findings = check_table(catalog.files, str(pointer.table), location, deep=deep, keys=keys)
        now = _location(catalog, pointer) if findings.found else location
        if now == location:
            break
        if now is None:  # dropped, or renamed: what is left of it is nobody's
            return Findings(str(pointer.table))
        location = now
    return findings


def _location(catalog: HeldCatalog, pointer: Pointer) -> str | None:
    contents = read_contents(catalog.database, catalog.name)
    return next((other.location for other in contents.pointers if other.table == pointer.table), None)


def _check_view(catalog: HeldCatalog, pointer: Pointer, location: str) -> Findings:
    findings = Findings(str(pointer.table), files=1)
    with findings.catching(Kind.VIEW.value, location):
        if not parse(catalog.files.read_bytes(location), location).json["versions"]:
            raise Wrong("it has no version")
    return findings


def _journal(catalog: HeldCatalog) -> Findings:
    """The journal and the tables' metadata of one instant: a flush changes both."""
    contents = read_contents(catalog.database, catalog.name)
    for _ in range(_LOOKS):
        findings = Findings("journal")
        check_journal(contents, _loaded(catalog, contents), findings)
        now = contents
        if findings.found:  # a table may have been dropped since, and its metadata removed
            contents = read_contents(catalog.database, catalog.name)
        if contents.rows == now.rows:
            break
    return findings


def _loaded(catalog: HeldCatalog, contents: Contents) -> dict[TableName, TableMetadata]:
    tables = {}
    for pointer in contents.pointers:
        if not pointer.is_view:
            try:
                metadata = load(catalog.files, pointer.location)
            except SparkportError:
                continue  # that is a finding of the table's own
            tables[pointer.table] = metadata
    return tables
