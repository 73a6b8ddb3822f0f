"""
The operator contract, and the plain operators that keep it: read `base` first, then `spec`, what a plan knows
of an operator before there is one, and `ports`, operators with several inputs.
"""
