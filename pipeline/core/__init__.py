"""What all rooms use: names of columns, what stages report, stable hashes, and Beam itself.

Public face: every module.
"""
