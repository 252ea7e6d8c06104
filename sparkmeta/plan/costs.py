"""The limits that decide how deletes are matched: the one set of costs of planning."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmeta.manifests.placement import MOST_ENTRIES


@dataclass(frozen=True)
class Costs:
    """Where one way of matching deletes becomes cheaper than another, or another one too large.

    Attributes:
        broadcast_deletes: groups of at most this many delete files are broadcast; more are joined by hash.
        driver_deletes: at most this many delete files are read, and grouped, by the driver.
        driver_pairs: the driver joins data files and deletes that it has read if the groups of all data files have at
            most this many deletes in sum: each file gets a copy of its groups.
        few_entries: DVs that can be broadcast are co-planned with at most this many data entries of a tree, and
            `entries_per_dv` more for each DV: a task takes longer for an entry than Spark's reader, and a join takes
            longer for a DV, and at all.
        entries_per_dv: see `few_entries`.
        held_dvs: a task may hold this many DVs with the data manifest that it reads.
        decoded_times: how often a DV may be decoded on average, beyond `held_dvs` in all.
        pairs: how many pairs of a data and a delete manifest may be read together.
        compared_pairs: how many pairs of manifests are compared by partition, on the driver.
    """

    broadcast_deletes: int = 100_000
    driver_deletes: int = MOST_ENTRIES
    driver_pairs: int = 10_000
    few_entries: int = 250_000
    entries_per_dv: int = 10
    held_dvs: int = 250_000
    decoded_times: int = 2
    pairs: int = 50_000
    compared_pairs: int = 10_000_000


COSTS = Costs()
