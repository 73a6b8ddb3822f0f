"""
What more than one package needs of a disk: locks on files, files of its own, the names in folders,
SQLite databases.
"""

__all__ = ()
