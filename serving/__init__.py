"""The gRPC server that ranks with exported versions, and its client.

Imports configs and TensorFlow's runtime; never Keras and never model/: a version is self-contained.
`serving.client.rank_client` imports neither TensorFlow nor numpy.
"""
