"""The planners that the benchmark compares. Their totals must be equal."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.benchmarks.timing import consume

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from tests.benchmarks.workload import Query


class Totals(NamedTuple):
    """Sums over a plan. Two planners with equal totals planned the same files of these tables."""

    files: int
    deletes: int
    records: int
    deleted_records: int


class Contender(ABC):
    """A planner. The benchmark times `plan`; `totals` may do more.

    Attributes:
        keeps: Whether the table stays open between plans, until `release`.
        saves_opening: Name of the contender that differs only by opening the table in each plan. If that contender's
            plans are long, this one is not measured.
        max_repeats: Limit on the measured runs of a slow planner, which is not warmed up either.
    """

    name: str
    keeps: bool = False
    saves_opening: str | None = None
    max_repeats: int | None = None
    opened: tuple[str, Any] | None = None

    @abstractmethod
    def plan(self, location: str, query: Query) -> Totals | None:
        """Plan a table and consume every planned file; return the totals if they cost nothing extra.

        Args:
            location: Location of the table's metadata JSON.
            query: Filter of the plan.
        """

    def totals(self, location: str, query: Query) -> Totals:
        """Plan a table and return the totals of the plan."""
        totals = self.plan(location, query)
        assert totals is not None, f"{self.name} gives no totals"
        return totals

    def release(self) -> None:
        """Close the table that was kept open."""
        self.opened = None


class IcebergJava(Contender):
    """`table.newScan().filter(..).planFiles()`, iterated in the JVM. Each plan opens the table."""

    name = "Iceberg Java, local"

    def __init__(self, spark: SparkSession) -> None:
        self.spark: Any = spark
        self.jvm: Any = spark._jvm

    def plan(self, location: str, query: Query) -> Totals:
        return Totals(*self._open(location).planLocally(query.expression))

    def _open(self, location: str) -> Any:
        return self.jvm.IcebergPlanner(location, False)


class IcebergJavaCached(IcebergJava):
    """Iceberg's local planner on a table that stays open, with Iceberg's cache of manifest bytes."""

    name = "Iceberg Java, local, cached"
    keeps = True

    def _open(self, location: str) -> Any:
        if self.opened is None or self.opened[0] != location:
            self.opened = location, self.jvm.IcebergPlanner(location, True)
        return self.opened[1]

    def release(self) -> None:
        if self.opened is not None:
            self.opened[1].dropCache()
        super().release()


class IcebergJavaDistributed(IcebergJava):
    """`SparkDistributedDataScan`, which plans data files and deletes in Spark jobs."""

    name = "Iceberg Java, distributed"

    def plan(self, location: str, query: Query) -> Totals:
        return Totals(*self._open(location).planDistributed(self.spark._jsparkSession, query.expression))


class Pyiceberg(Contender):
    """pyiceberg's `table.scan(row_filter=...).plan_files()`."""

    name = "pyiceberg"
    max_repeats: int | None = 2

    def plan(self, location: str, query: Query) -> Totals:
        from pyiceberg.table import StaticTable

        tasks = list(StaticTable.from_metadata(location).scan(row_filter=query.row_filter).plan_files())
        return Totals(
            len(tasks),
            sum(len(task.delete_files) for task in tasks),
            sum(task.file.record_count for task in tasks),
            sum(delete.record_count for task in tasks for delete in task.delete_files),
        )


class Sparkmeta(Contender):
    """Every column of `plan_files()`, written to Spark's noop sink. Each plan opens the table."""

    name = "sparkmeta"

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def plan(self, location: str, query: Query) -> None:
        consume(self._files(location, query))

    def totals(self, location: str, query: Query) -> Totals:
        from pyspark.sql import functions as F

        deleted = F.aggregate("deletes", F.lit(0).cast("long"), lambda sum_, delete: sum_ + delete["record_count"])
        sums = [F.sum(F.size("deletes")), F.sum("record_count"), F.sum(deleted)]
        return Totals(*self._files(location, query).agg(F.count("*"), *sums).collect()[0])

    def _files(self, location: str, query: Query) -> DataFrame:
        files: DataFrame = self._table(location).scan(row_filter=query.row_filter).plan_files()
        return files

    def _table(self, location: str) -> Any:
        import sparkmeta as sm

        return sm.load_table(location, spark=self.spark)


class SparkmetaArrow(Sparkmeta):
    """`arrow.plan_files()`. Measured where plans are short, since it holds the whole plan in memory."""

    name = "sparkmeta, Arrow"
    keeps = True
    saves_opening = Sparkmeta.name

    def plan(self, location: str, query: Query) -> None:
        self._table(location).scan(row_filter=query.row_filter).arrow.plan_files()


class SparkmetaTree(Sparkmeta):
    """sparkmeta on V4 trees with the same files and deletes.

    Attributes:
        trees: Location of the tree's metadata JSON, by location of the table's.
    """

    name = "sparkmeta, V4 tree"

    def __init__(self, spark: SparkSession, trees: Mapping[str, str]) -> None:
        super().__init__(spark)
        self.trees = trees

    def _table(self, location: str) -> Any:
        return super()._table(self.trees[location])


class SparkmetaTreeArrow(SparkmetaTree, SparkmetaArrow):
    """`arrow.plan_files()` on V4 trees."""

    name = "sparkmeta, V4 tree, Arrow"
    saves_opening = SparkmetaTree.name


class SparkmetaIcebergTree(SparkmetaTree):
    """sparkmeta on trees in the layout of the Iceberg project."""

    name = "sparkmeta, Iceberg layout"


class SparkmetaIcebergTreeArrow(SparkmetaIcebergTree, SparkmetaArrow):
    """`arrow.plan_files()` on trees in the layout of the Iceberg project."""

    name = "sparkmeta, Iceberg layout, Arrow"
    saves_opening = SparkmetaIcebergTree.name


class SparkmetaOpen(Sparkmeta):
    """sparkmeta on a table that stays open."""

    name = "sparkmeta, table open"
    keeps = True
    saves_opening = Sparkmeta.name

    def _table(self, location: str) -> Any:
        if self.opened is None or self.opened[0] != location:
            self.opened = location, super()._table(location)
        return self.opened[1]


class SparkmetaCached(Sparkmeta):
    """sparkmeta with a manifest cache in a folder, which the first plan of a table fills."""

    name = "sparkmeta, manifest cache"
    setting = "spark.sparkmeta.manifest-cache"

    def __init__(self, spark: SparkSession, folder: str) -> None:
        super().__init__(spark)
        self.folder = folder

    def _files(self, location: str, query: Query) -> DataFrame:
        self.spark.conf.set(self.setting, self.folder)
        try:
            return super()._files(location, query)
        finally:
            self.spark.conf.unset(self.setting)
