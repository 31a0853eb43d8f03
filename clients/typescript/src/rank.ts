// Ranks the candidates of a RankRequest, JSON on standard input; prints a line per ranked item.
//
//   node dist/rank.js --target localhost:8500 < request.json
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import * as grpc from "@grpc/grpc-js";
import { RankClient } from "./client.js";

const { values: options } = parseArgs({
  options: {
    target: { type: "string", default: "localhost:8500" },
    timeout: { type: "string", default: "5" },
    token: { type: "string", default: "" },
    ca: { type: "string" },
  },
});
let client: RankClient | undefined;
try {
  client = new RankClient(options.target, {
    timeout: Number(options.timeout),
    token: options.token,
    ca: options.ca,
  });
  const ranked = await client.rank(JSON.parse(readFileSync(0, "utf8")));
  const ids = ranked.item_id?.texts?.values ?? ranked.item_id?.integers?.values ?? [];
  const tasks = Object.entries(ranked.task_scores ?? {}).sort(([a], [b]) => (a < b ? -1 : 1));
  ids.forEach((id, place) => {
    const scores = tasks.map(([task, column]) => `${task}=${column.values[place]}`);
    console.log([id, `score=${ranked.score[place]}`, ...scores].join("\t"));
  });
  for (const warning of ranked.warnings) console.error(warning);
} catch (error) {
  const { code, details, message } = error as grpc.ServiceError;
  const status = grpc.status[code];
  console.error(status ? `${options.target}: ${status}: ${details}` : message);
  process.exitCode = 1;
} finally {
  client?.close();
}
