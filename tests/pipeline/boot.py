"""A Python worker that an engine starts; it asks for its endpoints, as Beam's containers do."""

import argparse

import grpc
from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc
from apache_beam.runners.worker.sdk_worker import SdkHarness


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--id", required=True)
    arguments.add_argument("--provision_endpoint", required=True)
    given, _ = arguments.parse_known_args()
    named = [("worker_id", given.id)]
    with grpc.insecure_channel(given.provision_endpoint) as channel:
        stub = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        info = stub.GetProvisionInfo(request, metadata=named, timeout=60).info
    SdkHarness(info.control_endpoint.url, worker_id=given.id).run()


if __name__ == "__main__":
    main()
