"""The cost limits that decide how deletes are matched."""

from __future__ import annotations

from dataclasses import dataclass

from sparkmeta.manifests.placement import MOST_ENTRIES


@dataclass(frozen=True)
class Costs:
    """The limits at which one way of matching deletes becomes cheaper than another, or too large.

    Attributes:
        broadcast_deletes: maximum delete files in groups that are broadcast; more are joined by hash.
        driver_deletes: maximum delete files that the driver reads and groups.
        driver_pairs: maximum pairs of a data file and a delete for which the driver joins the data files and deletes
            that it has read. Each pair holds a copy of the delete, of 200 bytes or more. At half a million pairs, a
            join by Spark is as fast for a DataFrame; for `arrow` results, the driver is still many times faster.
        few_entries: maximum data entries of a tree that are co-planned although their DVs are few enough to broadcast;
            `entries_per_dv` is added for each DV. A task is slower per entry than Spark's reader; a join is slower per
            DV and has a fixed cost.
        entries_per_dv: see `few_entries`.
        held_dvs: maximum DVs that a task may hold with the data manifest that it reads.
        decoded_times: how often each DV may be decoded on average, with an allowance of `held_dvs` in total.
        pairs: maximum pairs of a data and a delete manifest that may be read together.
        compared_pairs: maximum pairs of manifests that the driver compares by partition.
    """

    broadcast_deletes: int = 100_000
    driver_deletes: int = MOST_ENTRIES
    driver_pairs: int = 300_000
    few_entries: int = 250_000
    entries_per_dv: int = 10
    held_dvs: int = 250_000
    decoded_times: int = 2
    pairs: int = 50_000
    compared_pairs: int = 10_000_000


COSTS = Costs()
