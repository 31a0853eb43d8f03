"""The gRPC services, and what every call goes through.

Public face: `server.serve`, `server.Server`.
"""
