"""The planning service: Iceberg's REST catalog protocol, read-only, with scans planned by Spark.

    sm.serve("prod")                      # or: sparkmeta serve --catalog prod --port 8181

    server.py ─▶ app.py ─┬▶ tables.py ─▶ shown.py                    tables as clients see them
    uvicorn      routes  └▶ planning.py ─┬▶ runs.py                  which plans there are
                            threads      ├▶ sessions.py              where their jobs run
                                         └▶ plans.py ─▶ pages.py     their pages, written to spool.py

It needs the extra `serve`. Nothing but the command line and the package's face imports this room.
"""
