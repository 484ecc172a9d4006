// Ollama's JavaScript client under node: chats, prompts, streams, tools, formats, embeddings.
import { Ollama } from "ollama";

const [url, model] = process.argv.slice(2);
const client = new Ollama({ host: url });
const hi = [{ role: "user", content: "import os" }];
const options = { num_predict: 24, temperature: 0 };
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

await attempt("chat: two turns", async () => {
  const said = await client.chat({ model, messages: hi, options });
  check(said.message.content, "no text");
  const again = await client.chat({ model, messages: [...hi, said.message, ...hi], options });
  check(again.message.content, "no text");
});
await attempt("chat: stream", async () => {
  const whole = await client.chat({ model, messages: hi, options });
  let text = "";
  for await (const part of await client.chat({ model, messages: hi, options, stream: true })) {
    text += part.message.content;
  }
  check(text === whole.message.content, "the stream differs");
});
await attempt("generate, with the template and raw, streamed", async () => {
  for (const raw of [false, true]) {
    const asked = { model, prompt: "import os", raw, options };
    const whole = await client.generate(asked);
    let text = "";
    for await (const part of await client.generate({ ...asked, stream: true })) text += part.response;
    check(text && text === whole.response, "the stream differs");
  }
});
await attempt("chat: tools", async () => {
  const call = { function: { name: "book_trip", arguments: { city: "Oslo", days: 2 } } };
  const messages = [
    ...hi,
    { role: "assistant", content: "", tool_calls: [call] },
    { role: "tool", content: "booked", tool_name: "book_trip" },
  ];
  check((await client.chat({ model, messages, tools: [tool], options })).done, "not done");
});
await attempt("chat: a format", async () => {
  const long = { ...options, num_predict: 100 };
  const said = await client.chat({ model, messages: hi, format: schema, options: long });
  check(JSON.parse(said.message.content).city, "no city");
});
await attempt("list, ps, show", async () => {
  check((await client.list()).models[0].model === model, "not listed");
  check((await client.ps()).models[0].model === model, "not loaded");
  check((await client.show({ model })).capabilities.includes("completion"), "no capability");
});
await attempt("embeddings", async () => {
  const made = await client.embed({ model, input: ["import os", "import sys"] });
  check(made.embeddings.length === 2, "no embeddings");
});
await attempt("a stream that is aborted", async () => {
  const stream = await client.chat({
    model, messages: hi, options: { ...options, num_predict: 200 }, stream: true,
  });
  let parts = 0;
  try {
    for await (const _ of stream) if (++parts === 3) stream.abort();
  } catch (error) {
    check(error.name === "AbortError", String(error));
  }
  check(parts >= 3, "no parts");
  check((await client.chat({ model, messages: hi, options })).done, "not done");
});
await attempt("an error is one of the client's own", async () => {
  try {
    await client.chat({ model: "other", messages: hi });
  } catch (error) {
    check(error.status_code === 404, String(error));
    return;
  }
  throw new Error("no error");
});
