"""The ranking protocol: `ranking.proto` and the code generated from it (`make protos`).

Public face: `ranking_pb2`, `ranking_pb2_grpc`, `health_pb2`, `ssl_config_pb2`; those of
TensorFlow and TensorFlow Serving are in `runtime.tensorflow_messages`.
"""
