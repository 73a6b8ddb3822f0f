"""
Tools for your own tests: `loop` runs asyncio code on virtual time.
"""
