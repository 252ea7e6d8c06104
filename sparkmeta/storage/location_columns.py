"""The parts and comparable forms of locations in columns of Spark, equal to those of `storage.location` in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from sparkmeta.columns import sql
from sparkmeta.spec.locations import LOCAL
from sparkmeta.storage.location import S3_SCHEMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from sparkmeta.spec.locations import Locations

# Scheme, authority and path of a location, for Java's regular expressions.
_PARTS: Final = r"(?s)^(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)$"
# Finds paths that are not in their comparable form.
_ODD: Final = r"^(?!/)|//|/\.|/$"


def scheme_of(location: Column) -> Column:
    """Return the schemes of locations as they are written, or empty strings."""
    return F.regexp_extract(location, _PARTS, 1)


def authority_of(location: Column) -> Column:
    """Return the authorities of locations as they are written, or empty strings."""
    return F.regexp_extract(location, _PARTS, 2)


def path_key(location: Column) -> Column:
    """Return the comparable paths of files, without scheme and authority; see `storage.location.path_of`."""
    path = F.regexp_extract(location, _PARTS, 3)
    segments = F.aggregate(
        F.split(path, "/"),
        F.array().cast("array<string>"),
        lambda names, name: (
            F.when(name.isin("", "."), names)
            .when(name == "..", F.slice(names, F.lit(1), F.greatest(F.size(names) - 1, F.lit(0))))
            .otherwise(F.concat(names, F.array(name)))
        ),
    )
    return F.when(path.rlike(_ODD), F.concat(F.lit("/"), F.array_join(segments, "/"))).otherwise(path)


def location_key(location: Column) -> Column:
    """Return a form that is equal for all locations of a file; see `storage.location.normalize`."""
    written = F.lower(scheme_of(location))
    scheme = F.when(written == "", "file").when(written.isin(sorted(S3_SCHEMES)), "s3").otherwise(written)
    authority = authority_of(location)
    has_place = (authority != "") & (scheme != "file")
    place = F.when(has_place, F.concat(F.lit("//"), authority)).otherwise("")
    return F.concat(scheme, F.lit(":"), place, path_key(location))


def with_schemes(files: DataFrame, locations: Locations) -> DataFrame:
    """Return rows of files whose local paths have the scheme with which the table's metadata names them.

    Args:
        files: rows with the columns of `inspect.files`.
        locations: how the table's metadata names files.
    """
    if not locations.rooted:
        return files
    columns = [sql.quoted(name) for name in files.columns]
    paths = {sql.quoted(name) for name in ("file_path", "referenced_data_file")}
    return files.selectExpr(
        *(
            f"if(startswith({name}, '/'), '{LOCAL}' || {name}, {name}) AS {name}" if name in paths else name
            for name in columns
        )
    )
