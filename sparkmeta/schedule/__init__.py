"""Maintain the tables of a configuration: jobs that their health makes necessary, table after table."""
