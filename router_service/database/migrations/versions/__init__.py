"""A file for each migration, with SQLAlchemy and Alembic only, because the tables change later."""
