"""Choose the retained manifests that are likely to list a file of an expired manifest, by their partition summaries.

After a rewrite of manifests, they list all of the files of the expired ones, and no other manifest has to be read:

- A data file is in no delete manifest, and no delete file is in a data manifest. Without an expired manifest of a
  content that has live entries, no manifest of that content is read.
- Entries of one data file and spec usually name the same partition tuple. So two data manifests of one spec share no
  file if their summaries exclude each other in some field. This does not hold after the repair of a wrong tuple: the
  manifests left out are read before a data file is deleted.

Nothing else is concluded:

- A file may be added again under another spec. If expired data manifests are of several specs, all retained ones are
  read, and those of other specs always.
- A file may be added again by a later snapshot: cherry-picks do that, and reverts. Sequence numbers and snapshot ids
  exclude nothing.
- Deletion vectors of several partitions share a Puffin file. Delete manifests are compared by content only.
- Floats, UUIDs and unknown transforms have no order that all writers share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkmeta.avro.manifest_list import MANIFEST_FILE_SCHEMA, SUMMARIES, manifests_of_list
from sparkmeta.columns.bounds import ANY
from sparkmeta.errors import CorruptFileError

_UNORDERED = ("float", "double", "uuid", ANY)


@dataclass(frozen=True)
class SharedFiles:
    """Chooses among the data manifests of one partition spec. Picklable.

    Attributes:
        spec_fields: spec id -> (partition field id, type name) of its fields, in the spec's order.
    """

    spec_fields: Mapping[int, Sequence[tuple[int, str]]]

    def chosen(self, manifests: pa.Table) -> pa.Table:
        """Return the expired manifests, and the retained ones that may list one of their files.

        Args:
            manifests: rows of `LISTED` of one spec.
        """
        retained = np.asarray(manifests.column("retained").to_numpy(zero_copy_only=False), bool)
        spec_id = manifests.column("spec_id")[0].as_py()
        if retained.all() or not retained.any() or not self.spec_fields.get(spec_id):
            return manifests
        try:
            summaries = self._summaries(manifests)
        except CorruptFileError:  # they exclude nothing
            return manifests
        fields = [
            _overlaps(summaries.field(str(field_id)), retained)
            for field_id, kind in self.spec_fields[spec_id]
            if kind not in _UNORDERED
        ]
        # Expired manifests overlap with themselves.
        return manifests.filter(pa.array(reduce(np.logical_and, fields, np.ones(len(manifests), bool))))

    def _summaries(self, manifests: pa.Table) -> pa.StructArray:
        known = {
            "manifest_path": manifests.column("path"),
            "partition_spec_id": manifests.column("spec_id"),
            "partitions": manifests.column("partitions"),
            "content": pa.repeat(pa.scalar(0, pa.int32()), len(manifests)),
        }
        columns = [known.get(field.name, pa.nulls(len(manifests), field.type)) for field in MANIFEST_FILE_SCHEMA]
        listed = pa.Table.from_arrays(columns, schema=MANIFEST_FILE_SCHEMA).combine_chunks()
        return manifests_of_list(listed, self.spec_fields, "partition summaries").column(SUMMARIES).combine_chunks()


def _overlaps(summaries: pa.StructArray, retained: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return which manifests may have a value of a partition field in common with an expired one."""
    everything = np.ones(len(summaries), bool)
    lower, upper = (_codes(summaries, name) for name in ("lower_bound", "upper_bound"))
    unknown = np.asarray(summaries.is_null().to_numpy(zero_copy_only=False), bool)
    nulls = pc.fill_null(summaries.field("contains_null"), True).to_numpy(zero_copy_only=False) | unknown
    has_bounds = (lower >= 0) & (upper >= 0)
    only_nulls = ~unknown & (lower < 0) & (upper < 0) & nulls
    strange = ~has_bounds & ~only_nulls | (has_bounds & (lower > upper))
    if strange[~retained].any():
        return everything
    expired = has_bounds & ~retained
    starting = np.searchsorted(np.sort(lower[expired]), upper, "right")
    ended = np.searchsorted(np.sort(upper[expired]), lower, "left")
    values_in_common = has_bounds & (starting > ended)
    nulls_in_common = nulls & nulls[~retained].any()
    return np.asarray(values_in_common | nulls_in_common | strange, bool)


def _codes(summaries: pa.StructArray, name: str) -> np.ndarray[Any, Any]:
    """Return the bounds as numbers in the same order, -1 for null. Lower and upper bounds have one numbering."""
    both = pa.concat_arrays([summaries.field("lower_bound"), summaries.field("upper_bound")])
    both = both.cast(pa.int8()) if pa.types.is_boolean(both.type) else both
    values = both.drop_null().unique()
    ordered = values.take(pc.sort_indices(values))
    codes = pc.fill_null(pc.index_in(both, ordered), -1).to_numpy(zero_copy_only=False)
    half = len(summaries)
    return np.asarray(codes[:half] if name == "lower_bound" else codes[half:], np.int64)
