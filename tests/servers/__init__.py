"""Real servers for the tests, each a process on the loopback address."""
