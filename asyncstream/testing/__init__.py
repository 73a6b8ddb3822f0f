"""
Tools for your own tests: `loop` runs asyncio code on virtual time, `simulation` a pipeline through crashes.
"""
