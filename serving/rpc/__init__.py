"""The gRPC services, and the interceptor that every call passes.

Public face: `server.serve`, `server.Server`.
"""
