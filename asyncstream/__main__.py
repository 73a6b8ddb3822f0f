"""
`python -m asyncstream` is the command `asyncstream`.
"""

from asyncstream.cli import main

__all__ = ()

raise SystemExit(main())
