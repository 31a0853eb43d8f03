"""Several server processes on one port: the supervisor and its workers.

Public face: `supervisor.supervise`.
"""
