// Asks a server once by Decide and once by DecideStream; prints both as JSON.
// node decide.js TARGET PROTO_FOLDER < request.json

const { readFileSync } = require("node:fs");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [target, folder] = process.argv.slice(2);
const definition = loader.loadSync("letterwise/v1/decision.proto", {
  includeDirs: [folder],
  keepCase: true,
  longs: Number,
  enums: String,
  oneofs: true,
  defaults: true,
});
const { DecisionService } = grpc.loadPackageDefinition(definition).letterwise.v1;
const client = new DecisionService(target, grpc.credentials.createInsecure());
const request = JSON.parse(readFileSync(0, "utf8"));
const deadline = () => ({ deadline: Date.now() + 10_000 });

function decide() {
  return new Promise((resolve, reject) => {
    client.decide(request, deadline(), (error, reply) => (error ? reject(error) : resolve(reply)));
  });
}

function decideStream() {
  return new Promise((resolve, reject) => {
    const events = [];
    const call = client.decideStream({ request }, deadline());
    call.on("data", (event) => events.push(event));
    call.on("error", reject);
    call.on("end", () => resolve(events));
  });
}

(async () => {
  const reply = await decide();
  const events = await decideStream();
  process.stdout.write(JSON.stringify({ reply, events }));
  client.close();
})().catch((error) => {
  process.stderr.write(`${error.message}\n`);
  process.exitCode = 1;
});
