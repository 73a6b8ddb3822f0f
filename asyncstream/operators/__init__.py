"""
The operator contract, and the plain operators that keep it: read `base` first.
"""
