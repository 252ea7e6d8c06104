"""The protocol to load and commit view metadata, and its implementation for views in folders."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sparkmeta.errors import (
    CommitFailedError,
    NoSuchTableError,
    NoSuchViewError,
    NotFoundError,
    TableAlreadyExistsError,
    UnsupportedError,
    ValidationError,
    ViewAlreadyExistsError,
)
from sparkmeta.operations.metadata_files import METADATA, newest_listed, version_of, versioned_location
from sparkmeta.operations.table_operations import Outcome, failure, is_compressed, outcome_of
from sparkmeta.spec.json_node import decompressed, parse_json
from sparkmeta.spec.table_properties import METADATA_PATH
from sparkmeta.spec.view_metadata import is_view_json, parse_view_metadata, serialize_view_metadata
from sparkmeta.storage.location import is_local, join

if TYPE_CHECKING:
    from uuid import UUID

    from sparkmeta.spec.view_metadata import ViewMetadata
    from sparkmeta.storage.files import Files

# A file beside the metadata files of a view, so that listings need not open metadata files of tables. It is written
# before the first metadata file, so that every view has it; a table may have it too.
VIEW_MARKER = "view.text"

DEFAULT_CODEC = "gzip"


class LoadedView(NamedTuple):
    """A version of a view's metadata, and its file."""

    metadata_location: str
    metadata: ViewMetadata


class ViewOperations(Protocol):
    """A view's pointer to its current metadata file."""

    def refresh(self) -> LoadedView:
        """Load the current metadata.

        Raises:
            NoSuchViewError: there is no view, or it is gone.
            ValidationError: another view has taken its place.
        """

    def commit(self, base: LoadedView | None, new: ViewMetadata) -> LoadedView:
        """Replace `base` with `new`, if the base is still current.

        Args:
            base: the metadata that `new` was made from; None creates the view.
            new: the metadata to commit.

        Raises:
            ViewAlreadyExistsError, TableAlreadyExistsError: the view to create exists, or a table of its name.
            NoSuchViewError: the view to change is gone.
            CommitFailedError: nothing was committed, since another commit came first. Refresh and try again.
            CommitStateUnknownError: the commit may have succeeded.
        """


@dataclass(frozen=True)
class FileSystemViewOperations:
    """The operations of a view in a folder.

    A commit publishes the next `v<N>.metadata.json` only if it is absent, as for tables. The first file of a table and
    a view has the same name, so only one succeeds if both are created in one folder at the same time. All commits on
    one base compete for one name too, with the codec of the base. Old metadata files are not deleted.

    Attributes:
        view_uuid: the UUID of the expected view; None for any.
    """

    files: Files
    folder: str
    view_uuid: UUID | None = None

    def refresh(self) -> LoadedView:
        """See `ViewOperations.refresh`."""
        location = self._newest()
        if location is None:
            raise NoSuchViewError(f"{self.folder}: there is no view")
        metadata = parse_view_metadata(self.files.read(location), location)
        refuse_other_view(location, metadata, self.view_uuid)
        return LoadedView(location, metadata)

    def commit(self, base: LoadedView | None, new: ViewMetadata) -> LoadedView:
        """See `ViewOperations.commit`. Also raises UnsupportedError for a view that would move, or is in a catalog."""
        if METADATA_PATH in new.properties:
            raise UnsupportedError(f"{self.folder}: a view in a folder can't have the property {METADATA_PATH}")
        version = 1 if base is None else _version(base.metadata_location) + 1
        compressed = base is not None and is_compressed(base.metadata.properties, DEFAULT_CODEC)
        is_compressed(new.properties, DEFAULT_CODEC)
        location = versioned_location(self.folder, version, compressed)
        self._refuse_stale(base)
        text = serialize_view_metadata(new).encode()
        self._publish(base, LoadedView(location, new), gzip.compress(text, mtime=0) if compressed else text)
        return LoadedView(location, new)

    def is_view(self) -> bool:
        """Return whether the folder contains a view."""
        location = self._newest()
        return location is not None and self._holds_view(location)

    def _newest(self) -> str | None:
        try:
            return newest_listed(self.files, self.folder).location
        except NoSuchTableError:
            return None

    def _holds_view(self, location: str) -> bool:
        return is_view_json(parse_json(decompressed(self.files.read(location), location), location))

    def _refuse_stale(self, base: LoadedView | None) -> None:
        newest = self._newest()
        if base is None:
            self._refuse_existing(newest)
        elif newest is None:
            raise NoSuchViewError(f"{self.folder}: the view is gone")
        elif newest != base.metadata_location:
            raise CommitFailedError(f"{base.metadata_location} is no longer the current version: {newest} is")
        else:
            self.refresh()  # refuses another view

    def _refuse_existing(self, newest: str | None) -> None:
        if newest is None:
            return
        if self._holds_view(newest):
            raise ViewAlreadyExistsError(f"{self.folder}: there is a view already: {newest}")
        raise TableAlreadyExistsError(f"{self.folder}: there is a table already: {newest}")

    def _publish(self, base: LoadedView | None, new: LoadedView, data: bytes) -> None:
        location = new.metadata_location
        try:
            if base is None:
                self.files.overwrite(
                    join(join(self.folder, METADATA), VIEW_MARKER), str(new.metadata.view_uuid).encode()
                )
            self.files.publish(location, data)
        except UnsupportedError:
            raise
        except Exception as error:
            outcome = outcome_of(lambda: self._outcome(location, data), new.metadata.properties)
            if outcome is Outcome.LOST and base is None:
                self._refuse_existing(self._newest())
            if outcome is not Outcome.WON:
                raise failure(outcome, location, error) from error

    def _outcome(self, location: str, data: bytes) -> Outcome:
        try:
            return Outcome.WON if self.files.read(location) == data else Outcome.LOST
        except NotFoundError:
            # A write to a disk has ended, but a request to a store may still be under way.
            return Outcome.LOST if is_local(location) else Outcome.UNKNOWN


def refuse_other_view(location: str, metadata: ViewMetadata, expected: UUID | None) -> None:
    """Raise ValidationError if a view was dropped and another one created in its place."""
    if expected is not None and metadata.view_uuid is not None and metadata.view_uuid != expected:
        raise ValidationError(
            f"{location}: view-uuid is {metadata.view_uuid}: the view that was opened here is {expected}"
        )


def _version(location: str) -> int:
    if (version := version_of(location)) is None:
        raise UnsupportedError(f"{location}: it belongs to a catalog's view: commit through the catalog")
    return version
