// A worker in plain JavaScript, without dependencies. Run it with Node 18 or newer:
//   FLOWFABRIC_URL=http://localhost:9090 FLOWFABRIC_TOKEN=ffp_... node worker.mjs
import { hostname } from "node:os";

const url = process.env.FLOWFABRIC_URL;
const token = process.env.FLOWFABRIC_TOKEN;
const worker = { worker_id: "javascript", worker_instance_id: `${hostname()}-${process.pid}` };

// The tasks of this worker. If a task throws, its attempt fails; the policy decides on a retry.
const tasks = {
  upper: async ({ text }) => text.toUpperCase(),
};

async function call(path, body) {
  const answer = await fetch(url + path, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const found = await answer.json();
  if (!answer.ok) throw new Error(`${path}: ${found.detail}`);
  return found;
}

async function run({ task, arguments: given, lease }) {
  // Renew the lease while the task runs. If the lease is lost, another worker gets the execution.
  const beat = setInterval(() => call("/v1/leases/renew", { leases: [lease] }).catch(console.error), 10_000);
  try {
    const result = await tasks[task](given);
    await call("/v1/leases/complete", { lease, result });
  } catch (error) {
    await call("/v1/leases/fail", { lease, reason: String(error), detail: error.stack });
  } finally {
    clearInterval(beat);
  }
}

async function register() {
  const names = Object.keys(tasks).map((name) => ({ name }));
  await call("/v1/workers/register", { ...worker, tasks: names });
}

async function beat() {
  const body = { worker_instance_id: worker.worker_instance_id };
  if ((await call("/v1/workers/heartbeat", body)).register) await register();
}

await register();
setInterval(() => beat().catch(console.error), 20_000).unref();

for (;;) {
  try {
    const body = { ...worker, tasks: Object.keys(tasks), limit: 10, wait_seconds: 20 };
    const { items } = await call("/v1/workers/claim", body);
    await Promise.allSettled(items.map(run));
  } catch (error) {
    console.error(error.message);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
