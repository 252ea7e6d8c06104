"""The planning service: Iceberg's REST catalog protocol, read-only, with scans planned by Spark.

    sm.serve("prod")                      # or: sparkmeta serve --catalog prod --port 8181

    server.py ─▶ app.py ─┬▶ plans.py       tables as clients see them, and what Spark plans for them
    uvicorn      routes  └▶ planning.py    which plans there are, and the threads and sessions where their jobs run
                             └▶ plans.py ─▶ pages.py    the pages of plans, and the spool that stores them

It needs the extra `serve`. Nothing but the command line and the package's face imports this room.
"""
