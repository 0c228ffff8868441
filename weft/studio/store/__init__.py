"""Accounts of the studio and what belongs to them, in a database: SQLite by default, PostgreSQL by its URL.

tables        the tables
database      opens the database, upgrades it, and explains its errors
migrations/   one file a revision of the tables (Alembic)
accounts      people: names, passwords, roles, quotas
credentials   login sessions and API tokens: only their hashes are stored
records       the audit log, the settings of the studio, preferences of people
store         all of these together, and who a request comes from

Runs, datasets and jobs are folders and never in here: without the database they are all still there.
"""
