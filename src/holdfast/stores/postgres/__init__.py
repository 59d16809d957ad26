"""A store on a PostgreSQL server: the second kind of database, behind the same mechanism as an SQLite file."""
