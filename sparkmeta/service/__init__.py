"""The planning service: Iceberg's REST catalog protocol, read-only, with scans planned by Spark.

    sm.serve("prod")                      # or: sparkmeta serve --catalog prod --port 8181

    server.py ─▶ app.py ─▶ catalog_api.py, planning.py ─▶ plans.py ─▶ pages.py, spool.py
    uvicorn      routes    tables as clients see them     runs        what Spark's tasks write

It needs the extra `serve`. Nothing but the command line and the package's face imports this room.
"""
