"""Add and remove expressions of metadata trees: functions of columns whose values have statistics in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.table.update import AssertLastAssignedFieldId, UpdateTableMetadata
from pyiceberg.transforms import VoidTransform

from sparkmeta.errors import InvalidChangeError, UnsupportedError, hint_at, shown
from sparkmeta.spec.functions import Function, call_of
from sparkmeta.spec.metadata import tree_layout, with_expression
from sparkmeta.spec.metadata_model import TableMetadataV4
from sparkmeta.spec.partitioning import Expression
from sparkmeta.spec.schema import path_to
from sparkmeta.spec.tree_layout import PROPOSAL
from sparkmeta.spec.update_schema import names_table

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.types import NestedField

    from sparkmeta.spec.metadata import TableMetadata


@dataclass(frozen=True)
class AddExpression:
    """A change that adds an expression. The expression gets the next free id when the change is applied.

    Attributes:
        source_id: the id of the column.
        function: the function of the column.
        name: the name of the expression.
    """

    source_id: int
    function: Function
    name: str

    def apply(self, metadata: TableMetadata) -> TableMetadata:
        """Return metadata with the expression.

        Raises:
            InvalidChangeError: the column is not in the schema, or the expression or its name already exists.
        """
        tree = _tree(metadata)
        if self.source_id not in tree.schema().field_ids:
            raise InvalidChangeError(f"{tree.location}: the column of {self.name} has been deleted")
        for other in tree.expressions:
            is_same = other.function == self.function and other.source_ids == (self.source_id,)
            if is_same or other.name == self.name:
                raise InvalidChangeError(f"{tree.location}: there is an expression {_text(other, tree)} already")
        return with_expression(tree, self.source_id, str(self.function), self.name)


@dataclass(frozen=True)
class RemoveExpression:
    """A change that makes an expression void, unless a partition field uses it. Its id is never reused."""

    name: str

    def apply(self, metadata: TableMetadata) -> TableMetadata:
        """Return metadata without the expression.

        Raises:
            InvalidChangeError: there is no such expression.
        """
        tree = _tree(metadata)
        virtual = [expression for expression in tree.expressions if expression.partition_field_id is None]
        if self.name not in (names := [expression.name for expression in virtual if expression.name]):
            problem = f"there is no expression {shown(self.name)}{hint_at(self.name, names)}"
            raise InvalidChangeError(f"{tree.location}: {problem}")
        # If the expression were deleted, its id would look like that of a column whose schema was removed.
        expressions = [
            Expression(expr_id=each.expr_id, source_ids=each.source_ids, transform=str(VoidTransform()))
            if each in virtual and each.name == self.name
            else each
            for each in tree.expressions
        ]
        return tree.model_copy(update={"expressions": expressions})


def _tree(metadata: object) -> TableMetadataV4:
    """Return the metadata, checked to be that of a tree that can have expressions.

    Raises:
        UnsupportedError: the table is not a tree, or it has the layout of the Iceberg project.
    """
    if not isinstance(metadata, TableMetadataV4) or tree_layout(metadata) != PROPOSAL:
        raise UnsupportedError(
            f"{getattr(metadata, 'location', '')}: only trees in the layout {PROPOSAL} have expressions"
        )
    return metadata


def _text(expression: Expression, metadata: TableMetadata) -> str:
    columns = [metadata.schema().find_column_name(source) or str(source) for source in expression.source_ids]
    call = expression.function.of(*columns) if expression.function is not None and len(columns) == 1 else ""
    return f"{expression.name} = {call or expression.transform}"


@names_table
class UpdateExpressions(UpdateTableMetadata["UpdateExpressions"]):
    """A builder of changes to the expressions of a tree.

    Data files that are written after the change have statistics of the expression's values. Filters that test the same
    function of the column prune by them.
    """

    def __init__(self, transaction: Transaction, case_sensitive: bool = True) -> None:
        super().__init__(transaction)
        self._case_sensitive = case_sensitive
        self._changes: list[AddExpression | RemoveExpression] = []

    def add(self, call: str, name: str | None = None) -> UpdateExpressions:
        """Add an expression: a function of a column.

        Args:
            call: the function and its column as in filters, such as `lower(name)` or `variant_get(v, '$.a', 'long')`.
            name: the name of the expression; by default, made of the names of the function and the column.

        Raises:
            InvalidChangeError: there is no such function or column, the function does not accept the column's type, or
                the column is in a list or map.
            UnsupportedError: the table is not a tree, or it has the layout of the Iceberg project.
        """
        metadata = _tree(self._transaction.table_metadata)
        function, column = call_of(call)
        try:
            field = metadata.schema().find_field(column, self._case_sensitive)
        except ValueError:
            hint = hint_at(column, metadata.schema().column_names)
            raise InvalidChangeError(f"{metadata.location}: {call}: no column {shown(column)}{hint}") from None
        path: list[NestedField] = path_to(metadata.schema(), field.field_id)
        if any(not parent.field_type.is_struct for parent in path[:-1]):
            raise InvalidChangeError(f"{metadata.location}: {call}: the column is in a list or map")
        if not function.can_transform(field.field_type):
            raise InvalidChangeError(f"{metadata.location}: {call}: the column has type {field.field_type}")
        self._changes.append(AddExpression(field.field_id, function, name or function.default_name(column)))
        return self

    def remove(self, name: str) -> UpdateExpressions:
        """Remove an expression by its name. Readers then ignore its statistics in files.

        Raises:
            UnsupportedError: the table is not a tree, or it has the layout of the Iceberg project.
        """
        _tree(self._transaction.table_metadata)
        self._changes.append(RemoveExpression(name))
        return self

    def _commit(self) -> Any:
        # Files that the transaction writes next have statistics under the ids of its expressions.
        last_id = self._transaction.table_metadata.last_column_id
        is_adding = any(isinstance(change, AddExpression) for change in self._changes)
        required = AssertLastAssignedFieldId.model_validate({"last-assigned-field-id": last_id})
        return tuple(self._changes), (required,) if is_adding else ()
