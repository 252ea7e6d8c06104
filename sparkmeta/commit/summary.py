"""placeholder until the builder lands"""


def snapshot_summary(operation, added, removed, parent, properties, replaced):
    from sparkmeta.spec.snapshot import Summary

    return Summary(operation=operation, **properties)
