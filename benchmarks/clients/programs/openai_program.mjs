// OpenAI's JavaScript client under node: both APIs, and the preflight of a browser.
import OpenAI from "openai";

const [url, model, origin] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const hi = [{ role: "user", content: "import os" }];
const limits = { model, max_tokens: 24, temperature: 0 };
const schema = {
  type: "object",
  properties: {
    city: { type: "string", enum: ["Paris", "Rome", "Oslo"] },
    days: { type: "integer", minimum: 1, maximum: 9 },
  },
  required: ["city", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "book_trip", parameters: schema } };
const flat = { type: "function", name: "book_trip", parameters: schema, strict: true };

async function attempt(what, work) {
  try {
    await work();
    console.log(JSON.stringify({ what, passed: true }));
  } catch (error) {
    console.log(JSON.stringify({ what, passed: false, why: String(error) }));
  }
}

function check(holds, what) {
  if (!holds) throw new Error(what);
}

const ask = (more = {}) => client.chat.completions.create({ ...limits, messages: hi, ...more });

await attempt("chat: two turns", async () => {
  const said = (await ask()).choices[0].message;
  check(said.content, "no text");
  check((await ask({ messages: [...hi, said, ...hi] })).choices[0].message.content, "no text");
});
await attempt("chat: stream", async () => {
  let text = "";
  for await (const part of await ask({ stream: true })) text += part.choices[0]?.delta?.content ?? "";
  check(text === (await ask()).choices[0].message.content, "the stream differs");
});
await attempt("chat: tools, two turns, streamed", async () => {
  const choice = { type: "function", function: { name: "book_trip" } };
  const forced = { tools: [tool], tool_choice: choice, max_tokens: 100 };
  const said = (await ask(forced)).choices[0].message;
  const call = said.tool_calls[0];
  check(JSON.parse(call.function.arguments).days >= 1, "no arguments");
  const done = { role: "tool", tool_call_id: call.id, content: "booked" };
  await ask({ tools: [tool], messages: [...hi, said, done] });
  const stream = client.chat.completions.stream({ ...limits, messages: hi, ...forced });
  const last = await stream.finalMessage();
  check(JSON.parse(last.tool_calls[0].function.arguments).city, "no arguments");
});
await attempt("chat: structured output, second turn", async () => {
  const form = { type: "json_schema", json_schema: { name: "trip", strict: true, schema } };
  const parsed = await client.chat.completions.parse({
    ...limits, messages: hi, response_format: form, max_tokens: 100,
  });
  const said = parsed.choices[0].message;
  check(JSON.parse(said.content).city, "no city");
  await ask({ messages: [...hi, said, ...hi] });
});
await attempt("chat: hints, and the header that names them", async () => {
  const { response } = await ask({
    store: true, metadata: { a: "b" }, service_tier: "flex", verbosity: "low",
    reasoning_effort: "low", prompt_cache_key: "k", safety_identifier: "someone",
  }).withResponse();
  check(response.headers.get("x-penstock-ignored").includes("service_tier"), "not named");
});
await attempt("responses: two turns, tools, structured output, stream", async () => {
  const common = { model, temperature: 0, max_output_tokens: 100 };
  const first = await client.responses.create({ ...common, input: "import os" });
  const again = [...hi, ...first.output, ...hi];
  await client.responses.create({ ...common, input: again, reasoning: { effort: "low" } });
  const called = await client.responses.create({
    ...common, input: "import os", tools: [flat], tool_choice: { type: "function", name: "book_trip" },
  });
  check(called.output.some((item) => item.type === "function_call"), "no call");
  const parsed = await client.responses.parse({
    ...common, input: "import os",
    text: { format: { type: "json_schema", name: "trip", strict: true, schema } },
  });
  check(JSON.parse(parsed.output_text).city, "no city");
  const stream = client.responses.stream({ ...common, input: "import os" });
  check((await stream.finalResponse()).output_text === first.output_text, "the stream differs");
});
await attempt("embeddings", async () => {
  const made = await client.embeddings.create({ model, input: ["import os", "import sys"] });
  check(made.data[0].embedding.length > 1, "no embedding");
});
await attempt("an error is one of the client's own", async () => {
  try {
    await ask({ temperature: -1 });
  } catch (error) {
    check(error instanceof OpenAI.BadRequestError && error.param === "temperature", String(error));
    return;
  }
  throw new Error("no error");
});
await attempt("browser: preflight of every header that the client sends", async () => {
  const sent = [];
  const spy = new OpenAI({
    baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true,
    fetch: (where, how) => {
      sent.push(...new Headers(how.headers).keys());
      return fetch(where, how);
    },
  });
  await spy.chat.completions.create({ ...limits, messages: hi });
  const asked = sent.filter((name) => name !== "accept").sort().join(",");
  check(asked.includes("x-stainless-"), asked);
  const answer = await fetch(`${url}/v1/chat/completions`, {
    method: "OPTIONS",
    headers: {
      origin, "access-control-request-method": "POST", "access-control-request-headers": asked,
    },
  });
  check(answer.status === 200, `${answer.status} ${await answer.text()}`);
  const allowed = answer.headers.get("access-control-allow-headers").toLowerCase();
  for (const name of asked.split(",")) check(allowed.includes(name), `${name} is not allowed`);
});
