"""JSON over HTTP: TensorFlow Serving's REST paths, and our own messages as JSON.

A request becomes the message of the gRPC method, and goes the way of a gRPC call from there on.

Public face: `http.HttpServer`, `app.RestApp`.
"""
