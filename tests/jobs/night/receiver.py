"""Receives spans as a collector does: run as a process, with a collector's configuration.

Prints a line for each span, with its name as the collector's debug exporter writes it.
"""

import argparse
from concurrent import futures
from pathlib import Path

import grpc
import yaml
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc


class Receiver(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    print(f"    Name           : {span.name}", flush=True)
        return trace_service_pb2.ExportTraceServiceResponse()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    config = yaml.safe_load(parser.parse_args().config.read_text())
    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Receiver(), server)
    endpoint = config["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert server.add_insecure_port(endpoint), endpoint
    server.start()
    server.wait_for_termination()
