"""
PySpark's daemon, which has imported what its workers need before it forks them: each begins a second sooner.

Workers end when a task fails or they are killed, and when they have had nothing to do for a minute.
"""

import pandas  # noqa: F401
import pyarrow  # noqa: F401
from pyspark.daemon import manager
from pyspark.sql.pandas import serializers  # noqa: F401

from asyncstream.runtime.spark.worker import keyed, tasks  # noqa: F401
from tests.spark import contract  # noqa: F401

if __name__ == "__main__":
    manager()
