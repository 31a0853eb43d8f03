// A client of the ranking service: one channel with the service config of retries and balancing.
import { readFileSync } from "node:fs";
import * as grpc from "@grpc/grpc-js";
import * as loader from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./generated/ranking.js";
import type { RankRequest } from "./generated/multigate/RankRequest.js";
import type { RankResponse__Output } from "./generated/multigate/RankResponse.js";
import type { RankingServiceClient } from "./generated/multigate/RankingService.js";

// The one definition of the messages; the types in generated/ are made from it.
const PROTO = new URL("../../../serving/protos/ranking.proto", import.meta.url).pathname;
const SERVICE_CONFIG = new URL("../service_config.json", import.meta.url);
// host:port, or an address with a scheme that gRPC reads itself. Of all else gRPC would look up the
// whole as a name, or take port 443.
const TARGET = /^(?:(?:[^\s:/[\]]+|\[[^\s/[\]]+\]):(\d{1,5})|(?:dns|ipv4|ipv6|unix):.+)$/;

export interface Options {
  /** Seconds that a call may take, retries included. */
  timeout?: number;
  /** Bearer token sent with every call; empty: none. */
  token?: string;
  /** PEM file of the certificates to trust; absent: no TLS. */
  ca?: string;
}

export class RankClient {
  readonly #stub: RankingServiceClient;
  readonly #timeout: number;
  readonly #metadata = new grpc.Metadata();

  /** Connects on the first call; throws where the target is no address of a gRPC server. */
  constructor(target: string, { timeout = 5, token = "", ca }: Options = {}) {
    const found = TARGET.exec(target);
    const port = Number(found?.[1] ?? 1);
    if (!found || port < 1 || port > 65535) {
      const received = JSON.stringify(target);
      throw new Error(`target: expected host:port of a gRPC server, received ${received}`);
    }
    const definition = loader.loadSync(PROTO, {
      keepCase: true,
      longs: String,
      enums: String,
      oneofs: true,
      defaults: true,
    });
    const types = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;
    const credentials = ca
      ? grpc.credentials.createSsl(readFileSync(ca))
      : grpc.credentials.createInsecure();
    this.#stub = new types.multigate.RankingService(target, credentials, {
      "grpc.service_config": readFileSync(SERVICE_CONFIG, "utf8"),
    });
    this.#timeout = timeout;
    if (token) this.#metadata.set("authorization", `Bearer ${token}`);
  }

  /** Ranks the request's candidates; rejects with a `grpc.ServiceError`, which has the status. */
  rank(request: RankRequest): Promise<RankResponse__Output> {
    const deadline = Date.now() + this.#timeout * 1000;
    return new Promise((resolve, reject) => {
      this.#stub.Rank(request, this.#metadata, { deadline }, (error, response) =>
        response ? resolve(response) : reject(error),
      );
    });
  }

  close(): void {
    this.#stub.close();
  }
}
