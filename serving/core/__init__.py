"""What all rooms of the server use: options, the event loop, metrics, logs, failures.

Public face: every module.
"""
