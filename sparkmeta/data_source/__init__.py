"""The data source `sparkmeta` of Spark, and table functions: metadata tables, plans and rows for SQL."""
