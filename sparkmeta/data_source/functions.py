"""Table functions for SQL: `SELECT * FROM sparkmeta_files('prod.db.events')`, and calls of procedures.

Spark runs them in one task, in a Python process without a session. So they read what the data source reads, and commit
only changes that need no job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.functions import AnalyzeArgument, AnalyzeResult  # type: ignore[attr-defined]
from pyspark.sql.types import BooleanType, MapType, StringType, StructType

from sparkmeta.arrow_types import arrow_schema
from sparkmeta.checks import FLAG
from sparkmeta.commit.manage_snapshots import ManageSnapshots
from sparkmeta.data_source.changes import read_of
from sparkmeta.data_source.fleet import FleetRead, tables_of
from sparkmeta.data_source.options import CHANGELOG, ReadOptions
from sparkmeta.data_source.tables import HEALTH, OF_HISTORY, OF_SNAPSHOT, PLAN
from sparkmeta.errors import (
    InvalidArgumentError,
    NoSessionError,
    SparkmetaError,
    UnsupportedError,
    first_line,
    shown,
)
from sparkmeta.expr.evaluate import typed
from sparkmeta.maintain.maintenance import Maintenance
from sparkmeta.manifests.placement import ManifestLoad
from sparkmeta.session import worker_call
from sparkmeta.text import byte_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sparkmeta.data_source.options import Catalogs
    from sparkmeta.data_source.tables import Read
    from sparkmeta.table import Table

PREFIX: Final = "sparkmeta_"
# Arguments whose names differ from their options. As in Iceberg's procedures, `table` is the table's name.
_OPTIONS: Final = {"table": "path", "name": "table"}


@dataclass(frozen=True)
class TableFunction:
    """A table function.

    Attributes:
        name: its name in SQL.
        parameters: the options that positional arguments set, in order. Other options are named arguments, with `_` for
            `-`.
        fixed: options that the function sets.
        catalogs: the catalogs of Spark's configuration.
    """

    name: str
    parameters: tuple[str, ...]
    fixed: tuple[tuple[str, str], ...]
    catalogs: Catalogs

    def row_type(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> StructType:
        """Return the type of the rows for arguments."""
        return self._read(arguments, named).row_type

    def rows(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows for arguments."""
        read = self._read(arguments, named)
        schema = arrow_schema(read.row_type)
        for share in read.shares():
            for rows in read.rows(share, schema.names):
                yield from python_rows(typed(rows.select(schema.names), schema))

    def _read(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> Read:
        options = ReadOptions.of(self._options(arguments, named))
        if (tables := tables_of(options, self.catalogs)) is not None:
            return FleetRead(options, tables)
        return read_of(options, options.open(self.catalogs))

    def _options(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, str]:
        if len(arguments) > len(self.parameters):
            raise InvalidArgumentError(f"{self.name} takes {', '.join(self.parameters)} and named options")
        given = dict(zip(self.parameters, arguments, strict=False)) | dict(named)
        properties = given.pop("properties", None) or {}
        options = {_OPTIONS.get(name, name.replace("_", "-")): value for name, value in given.items()}
        options |= {f"property.{name}": value for name, value in properties.items()}
        return {name: str(value) for name, value in (options | dict(self.fixed)).items() if value is not None}


def table_functions(catalogs: Catalogs) -> dict[str, type]:
    """Return the classes of table functions by their names in SQL."""
    functions = [
        TableFunction(f"{PREFIX}{PLAN}", ("table", "filter"), (("table", PLAN),), catalogs),
        TableFunction(f"{PREFIX}table", ("table", "name"), (), catalogs),
        *(
            TableFunction(f"{PREFIX}{name}", ("table",), (("table", name),), catalogs)
            for name in (*OF_SNAPSHOT, *OF_HISTORY, CHANGELOG, HEALTH)
        ),
    ]
    classes = {function.name: _class_of(function) for function in functions}
    return classes | {f"{PREFIX}call": _calling(catalogs)}


def _class_of(function: TableFunction) -> type:
    class Reads:
        @staticmethod
        def analyze(*arguments: AnalyzeArgument, **named: AnalyzeArgument) -> AnalyzeResult:
            with worker_call():
                values = [constant(function.name, argument) for argument in arguments]
                options = {name: constant(function.name, argument) for name, argument in named.items()}
                return AnalyzeResult(function.row_type(values, options))

        def eval(self, *arguments: Any, **named: Any) -> Iterator[tuple[Any, ...]]:
            with worker_call():
                yield from function.rows(arguments, named)

    return Reads


def constant(function: str, argument: AnalyzeArgument) -> Any:
    """Return the value of an argument. Raises InvalidArgumentError if it is not a constant."""
    if argument.isTable or not argument.isConstantExpression:
        raise InvalidArgumentError(f"{function} takes constants: not a column or a table")
    return argument.value


def python_rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield rows as tuples of values that PySpark converts to its types: structs are tuples, and maps dictionaries."""
    for batch in table.to_batches(max_chunksize=10_000):
        columns = [_values(column.to_pylist(), column.type) for column in batch.columns]
        yield from zip(*columns, strict=True)


def _values(values: list[Any], kind: pa.DataType) -> list[Any]:
    if not pa.types.is_nested(kind):
        return values
    return [None if value is None else _value(value, kind) for value in values]


def _value(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return tuple(_values([value[field.name]], field.type)[0] for field in kind)
    if pa.types.is_map(kind):
        return dict(zip([key for key, _ in value], _values([item for _, item in value], kind.item_type), strict=True))
    return _values(value, kind.value_type)


# -- Procedures -------------------------------------------------------------------------------------------------------


def rollback_to_snapshot(refs: ManageSnapshots, snapshot_id: int) -> object:
    """Make an ancestor of the current snapshot current."""
    return refs.rollback_to_snapshot(snapshot_id)


def rollback_to_timestamp(refs: ManageSnapshots, timestamp: datetime) -> object:
    """Make the newest ancestor from before a time current."""
    return refs.rollback_to_timestamp(int(timestamp.timestamp() * 1000))


def set_current_snapshot(refs: ManageSnapshots, snapshot_id: int | None = None, ref: str | None = None) -> object:
    """Make any snapshot current."""
    return refs.set_current_snapshot(snapshot_id, ref)


def cherrypick_snapshot(refs: ManageSnapshots, snapshot_id: int) -> object:
    """Apply the changes of a snapshot to main."""
    return refs.cherry_pick(snapshot_id)


def publish_changes(refs: ManageSnapshots, wap_id: str) -> object:
    """Apply the snapshot that has a `wap.id` to main."""
    return refs.publish_changes(wap_id)


PROCEDURES: Final[dict[str, Callable[..., Any]]] = {
    procedure.__name__: procedure
    for procedure in (
        rollback_to_snapshot, rollback_to_timestamp, set_current_snapshot, cherrypick_snapshot, publish_changes,
        ManageSnapshots.fast_forward, ManageSnapshots.create_tag, ManageSnapshots.replace_tag,
        ManageSnapshots.remove_tag, ManageSnapshots.create_branch, ManageSnapshots.replace_branch,
        ManageSnapshots.rename_branch, ManageSnapshots.remove_branch,
    )
}  # fmt: skip
_IN_PYTHON: Final = {"cherrypick_snapshot": "cherry_pick"}
# As in Iceberg's SQL, these use the current snapshot unless another is named.
_OF_CURRENT: Final = {"create_tag", "replace_tag", "create_branch", "replace_branch"}
_CALLED: Final = (
    StructType().add("procedure", StringType()).add("committed", BooleanType())
    .add("result", MapType(StringType(), StringType()))
)  # fmt: skip
# Operations of `Maintenance` -> what reads the table's manifests: the plan, only the commit, or nothing.
_PLAN, _COMMIT, _NOTHING = "plan", "commit", "nothing"
_MAINTENANCE: Final = {
    "expire_snapshots": _PLAN, "expire_rows": _PLAN, "remove_orphan_files": _PLAN, "rewrite_data_files": _PLAN,
    "remove_dangling_deletes": _PLAN, "rewrite_position_delete_files": _PLAN, "rewrite_manifests": _COMMIT,
    "convert_equality_deletes": _PLAN, "compact_manifests": _COMMIT, "compute_partition_stats": _PLAN,
    "compute_table_stats": _PLAN, "rewrite_table_path": _PLAN, "repair": _PLAN,
    "upgrade": _NOTHING, "undo_upgrade": _NOTHING, "downgrade": _PLAN, "convert_tree": _COMMIT,
}  # fmt: skip


def call(table: Table, procedure: str, arguments: Mapping[str, Any], *, commit: bool) -> dict[str, str]:
    """Run a procedure on a table, and return its result.

    Args:
        table: the table.
        procedure: one of `PROCEDURES`, or an operation of `Maintenance`.
        arguments: the arguments, as in Iceberg's procedure.
        commit: whether to commit the change.

    Raises:
        InvalidArgumentError: there is no such procedure, or an argument is unknown, missing or wrong.
        UnsupportedError: the procedure needs jobs of Spark.
    """
    FLAG.check("commit", commit)
    known = [*PROCEDURES, *_MAINTENANCE]
    if procedure not in known:
        raise InvalidArgumentError(f"{shown(procedure)} is not a procedure; procedures are {', '.join(known)}")
    is_maintenance = procedure in _MAINTENANCE
    called = getattr(Maintenance, procedure) if is_maintenance else PROCEDURES[procedure]
    if procedure in _OF_CURRENT:
        arguments = {"snapshot_id": table.metadata.current_snapshot_id, **arguments}
    _refuse_misfits(procedure, called, arguments)
    if is_maintenance:
        _refuse_large(table, procedure, commit=commit)
    try:
        return (_maintained if is_maintenance else _changed_refs)(table, called, arguments, commit=commit)
    except NoSessionError as error:
        raise _needs_jobs(procedure, f"{procedure} of this table") from error
    except SparkmetaError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{table.location()}: {procedure}: {first_line(error)}") from error


def _refuse_large(table: Table, procedure: str, *, commit: bool) -> None:
    """Refuse an operation that reads more manifests than one process should. Raises UnsupportedError."""
    if _MAINTENANCE[procedure] not in (_PLAN, _COMMIT if commit else _PLAN):
        return
    load = ManifestLoad.of(table.state.manifests)
    if not load.fits_driver(table.state.settings.driver_manifest_bytes):
        raise _needs_jobs(procedure, f"{procedure} of a table with {byte_size(load.size_in_bytes)} of manifests")


def _needs_jobs(procedure: str, what: str) -> UnsupportedError:
    accessor = "maintenance." if procedure in _MAINTENANCE else "manage_snapshots()."
    instead = f"table.{accessor}{_IN_PYTHON.get(procedure, procedure)}(...).commit() in Python"
    return UnsupportedError(f"{what} is not for table functions, which start no jobs of Spark: {instead}")


def _changed_refs(
    table: Table, procedure: Callable[..., Any], arguments: Mapping[str, Any], *, commit: bool
) -> dict[str, str]:
    transaction = table.transaction()
    refs = transaction.manage_snapshots()
    procedure(refs, **arguments)
    refs.commit()
    planned = transaction.table_metadata if not commit else transaction.commit().metadata
    ids = {"previous_snapshot_id": table.metadata, "current_snapshot_id": planned}
    before, after = ({name: ref.snapshot_id for name, ref in metadata.refs.items()} for metadata in ids.values())
    moved = {name: after.get(name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)}
    return {name: str(metadata.current_snapshot_id) for name, metadata in ids.items()} | {"refs": json.dumps(moved)}


def _maintained(
    table: Table, operation: Callable[..., Any], arguments: Mapping[str, Any], *, commit: bool
) -> dict[str, str]:
    """Return the numbers of a plan, or the changes of its commit."""
    # Spark passes timestamps without their zone, in the zone of this process.
    given = {name: value.astimezone() if isinstance(value, datetime) else value for name, value in arguments.items()}
    plan = operation(table.maintenance, **given)
    if commit:
        plan.commit()
    result = plan.result()
    numbers = result["plan"] if result["committed"] is None else result["committed"]
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in numbers.items()}


def _refuse_misfits(procedure: str, called: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    known = [*signature(called).parameters.values()][1:]
    names = [parameter.name for parameter in known]
    for name in arguments:
        if name not in names:
            raise InvalidArgumentError(f"{procedure} has no argument {name}; arguments are {', '.join(names)}")
    for parameter in known:
        if parameter.default is Parameter.empty and parameter.name not in arguments:
            raise InvalidArgumentError(f"{procedure} needs the argument {parameter.name}")


def _calling(catalogs: Catalogs) -> type:
    name = f"{PREFIX}call"

    class Calls:
        @staticmethod
        def analyze(*arguments: AnalyzeArgument, **named: AnalyzeArgument) -> AnalyzeResult:
            for argument in (*arguments, *named.values()):
                constant(name, argument)
            return AnalyzeResult(_CALLED)

        def eval(
            self, table: str, procedure: str, commit: bool = False, catalog: str | None = None, **arguments: Any
        ) -> Iterator[tuple[Any, ...]]:
            properties = (arguments.pop("properties", None) or {}).items()
            options = {"path": table} | {f"property.{name}": value for name, value in properties}
            if catalog is not None:
                options["catalog"] = catalog
            with worker_call():
                opened = ReadOptions.of(options).open(catalogs)
                yield procedure, commit, call(opened, procedure, arguments, commit=commit)

    return Calls
