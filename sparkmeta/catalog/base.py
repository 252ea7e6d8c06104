"""`Catalog`: the operations of all catalogs, under pyiceberg's names."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from sparkmeta.catalog.names import as_names
from sparkmeta.catalog.views import HoldsViews
from sparkmeta.errors import NamespaceAlreadyExistsError, TableAlreadyExistsError
from sparkmeta.storage.content import without_secrets
from sparkmeta.text import fact_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from sparkmeta.catalog.recovery import Recovery, RecoveryPlan
    from sparkmeta.fleet.health import FleetHealth
    from sparkmeta.fleet.inspect import InspectTables
    from sparkmeta.maintain.purge import PurgePlan
    from sparkmeta.maintain.take_in import TakeIn, TakeInPlan
    from sparkmeta.session import SessionSource
    from sparkmeta.spec.metadata import TableMetadata
    from sparkmeta.storage.files import Files
    from sparkmeta.table import Table

Identifier = str | tuple[str, ...]

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
# The properties that a notebook shows.
_SHOWN = ("type", "uri", "warehouse")


class Catalog(HoldsViews):
    """Tables, views and namespaces by identifier: text with dots, or a tuple of names.

    Every method may raise two more errors than it lists. CatalogError: the catalog refuses a request, fails or does not
    respond. UnsupportedError: the catalog does not support the operation. Messages name the catalog and show no
    credentials.

    The argument ``spark`` defaults to the session that is active when one is needed, or else to a new local one.

    Attributes:
        name: the name that the catalog was loaded with.
    """

    if TYPE_CHECKING:

        @property
        def name(self) -> str: ...

        @property
        def sessions(self) -> SessionSource: ...

    @property
    @abstractmethod
    def _configuration(self) -> Mapping[str, str]:
        """The properties of the catalog, with credentials."""

    def _repr_html_(self) -> str:
        """Describe the catalog in a notebook, without a request."""
        properties = self._configuration
        facts = {name: without_secrets(str(properties[name]), properties) for name in _SHOWN if properties.get(name)}
        return fact_table(f"{type(self).__name__} {self.name}", facts)

    def _with_sessions(self, sessions: SessionSource) -> Catalog:  # noqa: ARG002  for catalogs that may need a session
        """See `with_sessions`."""
        return self

    @abstractmethod
    def load_table(self, identifier: Identifier, spark: SparkSession | None = None) -> Table:
        """Load a table. Raises NoSuchTableError."""

    def create_table(  # noqa: PLR0913  pyiceberg's own parameters
        self,
        identifier: Identifier,
        schema: Schema | pa.Schema | StructType,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] | None = None,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        format_version: int | None = None,
        location: str | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table. The namespace of a table in folders need not exist.

        Args:
            schema: the columns: a schema of pyiceberg or Arrow, or of Spark, such as `df.schema`. Columns get new ids.
            partition_by: the partition fields, instead of `partition_spec`: columns and their transforms, such as
                `["day(ts)", "bucket(16, id)", "country"]`. A bucket may have several columns:
                `bucket(16, country, id)`.
            sort_by: the sort fields, instead of `sort_order`, such as `["ts DESC", "id"]`.
            format_version: 1, 2, which all engines read, 3, or 4 (the metadata tree). Defaults to the property
                `format-version`, or else to 2.
            location: the folder of its files. Defaults to the catalog's choice.

        Raises:
            TableAlreadyExistsError: the table exists.
            NoSuchNamespaceError: the namespace does not exist.
            UnsupportedError: the catalog or sparkmeta does not support tables of this format version.
            ValidationError: a column, a field of the layout or a property is invalid.
            CommitStateUnknownError: the catalog did not respond; the table may exist.
        """
        # Imported here, since loading a catalog should not load Arrow.
        from sparkmeta.catalog.new_table import metadata_of_new_table

        metadata_at = partial(
            metadata_of_new_table,
            schema=schema,
            spec=partition_spec,
            sort_order=sort_order,
            properties=properties,
            format_version=format_version,
            partition_by=partition_by,
            sort_by=sort_by,
        )
        return self._create_table(identifier, metadata_at, location, spark)

    @abstractmethod
    def _create_table(
        self,
        identifier: Identifier,
        metadata_at: Callable[[str], TableMetadata],
        location: str | None,
        spark: SparkSession | None,
    ) -> Table:
        """Create an empty table; see `create_table`.

        Args:
            metadata_at: returns the metadata of the table in a folder.
        """

    def create_table_if_not_exists(  # noqa: PLR0913  the same as create_table
        self,
        identifier: Identifier,
        schema: Schema | pa.Schema | StructType,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Mapping[str, str] | None = None,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        format_version: int | None = None,
        location: str | None = None,
        spark: SparkSession | None = None,
    ) -> Table:
        """Create an empty table, or load the one that exists, whatever its schema; see `create_table`."""
        try:
            return self.create_table(
                identifier,
                schema,
                partition_spec,
                sort_order,
                properties,
                partition_by=partition_by,
                sort_by=sort_by,
                format_version=format_version,
                location=location,
                spark=spark,
            )
        except TableAlreadyExistsError:
            return self.load_table(identifier, spark)

    def snapshot_table(  # noqa: PLR0913  create_table's, and the source
        self,
        source: str,
        identifier: Identifier,
        *,
        schema: Schema | pa.Schema | StructType | None = None,
        partition_by: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        format_version: int | None = None,
        location: str | None = None,
        spark: SparkSession | None = None,
    ) -> TakeInPlan[Table]:
        """Plan a new table of the files of a source, which stays in use: Iceberg's procedure `snapshot`.

        Nothing changes before the plan's `commit()`, which returns the table. Later commits write to the table's own
        folder. The property `gc.enabled` is `false`: no operation deletes files of the source.

        Args:
            source: a folder of Parquet, ORC or Avro files, such as `"/data/orders"`, or the name of a table of such
                files in Spark's own catalog. A folder has a slash in its name.
            identifier: the new table.
            schema: its columns. Defaults to the columns of Spark's table, or else of the files and of their folders
                `name=value`, all optional. Columns of files are merged by name, and their types promoted.
            partition_by: its partition fields, as for `create_table`. Defaults to the source's partition columns.
            properties: its properties, in addition to the properties of Spark's table, except ones that describe only
                that table or name folders.
            format_version: as for `create_table`.
            location: its folder, outside of the source's folders. Defaults to the catalog's choice.

        Raises:
            TableAlreadyExistsError: the table exists.
            NoSuchTableError: Spark's catalog has no such table.
            NoSuchNamespaceError: the namespace of the new table does not exist.
            NotFoundError: the folder has no data files.
            UnsupportedError: the source is of another kind, such as a Delta table, or the catalog can't hold the table.
            ValidationError: files contradict each other or an argument.
        """
        from sparkmeta.maintain.take_in import TakeIn

        request = TakeIn(source, schema, partition_by, properties, format_version, location, migrates=False)
        return self._take_in(request, identifier, spark)

    def migrate_table(
        self,
        source: str,
        identifier: Identifier,
        *,
        schema: Schema | pa.Schema | StructType | None = None,
        partition_by: Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        format_version: int | None = None,
        spark: SparkSession | None = None,
    ) -> TakeInPlan[Table]:
        """Plan a new table that takes the place of a source: Iceberg's procedure `migrate`.

        The folder of the table is the source's folder, and the table owns all files: maintenance may delete them. Drop
        a table of Spark's catalog afterwards. It must be external, so that its files stay. Arguments and
        errors are as for `snapshot_table`.
        """
        from sparkmeta.maintain.take_in import TakeIn

        request = TakeIn(source, schema, partition_by, properties, format_version, None, migrates=True)
        return self._take_in(request, identifier, spark)

    def _take_in(self, request: TakeIn, identifier: Identifier, spark: SparkSession | None) -> TakeInPlan[Table]:
        """See `snapshot_table` and `migrate_table`."""
        from sparkmeta.catalog.new_table import metadata_of_new_table

        names = as_names(identifier, 1)
        if self.table_exists(names):
            raise TableAlreadyExistsError(f"{'.'.join(names)}: the table already exists")

        def new_table(
            schema: Schema | pa.Schema | StructType,
            partition_by: Sequence[str],
            properties: Mapping[str, str],
            location: str | None,
        ) -> Table:
            metadata_at = partial(
                metadata_of_new_table,
                schema=schema,
                spec=UNPARTITIONED_PARTITION_SPEC,
                sort_order=UNSORTED_SORT_ORDER,
                properties=properties,
                format_version=request.format_version,
                partition_by=partition_by,
                sort_by=(),
            )
            return self._new_table(names, metadata_at, location, spark)

        return request.plan(
            self.sessions.for_caller(spark),
            lambda location: self._files_at(location, spark),
            new_table,
            lambda: self.load_table(names, spark),
        )

    @abstractmethod
    def _new_table(
        self,
        names: tuple[str, ...],
        metadata_at: Callable[[str], TableMetadata],
        location: str | None,
        spark: SparkSession | None,
    ) -> Table:
        """Return a table that its first commit creates.

        Args:
            names: the table.
            metadata_at: makes the metadata of the table in a folder.
            location: the folder of its files; None for the catalog's choice.
            spark: the session.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            UnsupportedError: the catalog can't hold the table, or hold it there.
        """

    @abstractmethod
    def _files_at(self, location: str, spark: SparkSession | None) -> Files:
        """Return the opener of files at a location that belongs to no table of the catalog."""

    @abstractmethod
    def register_table(
        self, identifier: Identifier, metadata_location: str, spark: SparkSession | None = None
    ) -> Table:
        """Add the table of a metadata file to the catalog. No file is written.

        Raises:
            TableAlreadyExistsError: the catalog has a table of the name.
            NoSuchNamespaceError: the namespace does not exist.
            CommitStateUnknownError: the catalog did not respond, and may have added the table.
        """

    def recover_table(
        self,
        identifier: Identifier,
        location: str | None = None,
        metadata_location: str | None = None,
        spark: SparkSession | None = None,
    ) -> RecoveryPlan:
        """Plan to recover a table whose current metadata file is lost or truncated. Nothing changes before `commit()`.

        The newest metadata file that can be read becomes current. The commits since then are lost. So are the commits
        of files that the folder lacks.

        Args:
            identifier: the table.
            location: its folder. Defaults to the folder of the metadata file that the catalog names. A catalog of
                folders knows it.
            metadata_location: the metadata file to take, by its name or location. Defaults to the newest that can be
                read. Except in a catalog of folders, a newer file may be left of a commit that failed.
            spark: the session.

        Raises:
            NoSuchTableError: there is no metadata file that can be read.
            ValidationError: the catalog lacks the table, so that its location is needed; or two files are the newest.
        """
        from sparkmeta.catalog.recovery import plan_recovery

        return plan_recovery(self._recovery(identifier, location, spark), metadata_location)

    @abstractmethod
    def _recovery(self, identifier: Identifier, location: str | None, spark: SparkSession | None) -> Recovery:
        """Return how a table is recovered."""

    @abstractmethod
    def rename_table(
        self, from_identifier: Identifier, to_identifier: Identifier, spark: SparkSession | None = None
    ) -> Table:
        """Rename a table, and return it. Its files are not moved.

        Raises:
            NoSuchTableError: the table does not exist.
            NoSuchNamespaceError: the new namespace does not exist.
            TableAlreadyExistsError: a table of the new name exists.
            CommitFailedError: another commit to the table came first.
            CommitStateUnknownError: the catalog did not respond, and may have renamed the table.
        """

    @abstractmethod
    def drop_table(self, identifier: Identifier) -> None:
        """Remove a table from the catalog. Its files stay. Raises NoSuchTableError."""

    def purge_table(self, identifier: Identifier, spark: SparkSession | None = None) -> PurgePlan:
        """Plan to drop a table and delete all of its files. Nothing changes before the plan's `commit()`.

        A REST catalog deletes the files itself. The plan is a `Plan`, whose commit returns what was deleted.

        Raises:
            NoSuchTableError: the table does not exist.
            ValidationError: the table property `gc.enabled` says that its files may belong to other tables.
            UnsupportedError: the table's files can't be deleted here.
        """
        from sparkmeta.maintain.purge import plan_purge

        table = self.load_table(identifier, spark)
        return plan_purge(table, lambda: self._drop_to_purge(table), by_catalog=self._deletes_files)

    @property
    def belongs_to_thread(self) -> bool:
        """Whether only the thread that loaded the catalog can use it."""
        return False

    @property
    def inspect(self) -> InspectTables:
        """The metadata tables of many tables, with the column `table`: `catalog.inspect.files("sales.*")`."""
        from sparkmeta.fleet.inspect import InspectTables

        return InspectTables(self)

    def health(
        self,
        pattern: str = "*",
        *,
        history: str | None = None,
        at_once: int | None = None,
        spark: SparkSession | None = None,
        **thresholds: Any,
    ) -> FleetHealth:
        """Examine the health of all tables whose names match a pattern: `print(catalog.health("sales.*"))`.

        Several tables are examined at once, small ones without Spark and large ones by jobs, as by
        `table.maintenance.health()`. A table that can't be loaded or examined appears as a row with its error. No table
        of the pattern changes.

        Args:
            pattern: a name, in which `*` and `?` stand for any characters.
            history: the name of a table of this catalog to which the run appends its rows, such as `ops.table_health`.
                It is created if it does not exist. The result then says what got worse since the last run, and its page
                draws the last 30.
            at_once: the number of tables that are examined at once. Defaults to the number of processors, at least 4.
            spark: a session for large tables.
            thresholds: the arguments of `table.maintenance.health()`. Columns that they name must be in all tables.

        Raises:
            NoSuchTableError: the pattern matches no table.
            ValidationError: an argument is out of range, or `history` is another table.
        """
        from sparkmeta.fleet.health import examine_tables
        from sparkmeta.maintain.health_findings import HealthOptions

        return examine_tables(self, pattern, spark, at_once, history, HealthOptions(**thresholds))

    @property
    def _deletes_files(self) -> bool:
        """Whether the catalog itself deletes the files of a table that is purged."""
        return False

    @abstractmethod
    def _drop_to_purge(self, table: Table) -> Sequence[str]:
        """Drop a table whose files are to be deleted, and return the files that are left."""

    @abstractmethod
    def table_exists(self, identifier: Identifier) -> bool:
        """Return whether the catalog has a table."""

    @abstractmethod
    def list_tables(self, namespace: Identifier) -> list[tuple[str, ...]]:
        """Return the identifiers of the tables directly in a namespace. Raises NoSuchNamespaceError."""

    @abstractmethod
    def create_namespace(self, namespace: Identifier, properties: Mapping[str, str] = NO_PROPERTIES) -> None:
        """Create a namespace.

        Raises:
            NamespaceAlreadyExistsError: the namespace exists.
            ValidationError: a key of the properties is not a string, or a value is neither a string nor a number.
        """

    def create_namespace_if_not_exists(
        self, namespace: Identifier, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> None:
        """Create a namespace unless it exists."""
        with suppress(NamespaceAlreadyExistsError):
            self.create_namespace(namespace, properties)

    @abstractmethod
    def drop_namespace(self, namespace: Identifier) -> None:
        """Drop an empty namespace.

        Raises:
            NoSuchNamespaceError: the namespace does not exist.
            NamespaceNotEmptyError: it has tables or namespaces.
        """

    @abstractmethod
    def namespace_exists(self, namespace: Identifier) -> bool:
        """Return whether the catalog has a namespace."""

    @abstractmethod
    def list_namespaces(self, namespace: Identifier = ()) -> list[tuple[str, ...]]:
        """Return the namespaces directly in a namespace. Raises NoSuchNamespaceError."""


def with_sessions(catalog: Catalog, sessions: SessionSource) -> Catalog:
    """Return a catalog with another default for ``spark``: threads of a service have no active session."""
    return catalog._with_sessions(sessions)
