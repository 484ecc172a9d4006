// Asking the server. The key is kept in memory alone, and sent in a header.

import { eventData } from "./events.js";

/** What the server refused, with its own words. */
export class ServerError extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** The server could not be reached, or broke off. */
export class ConnectionLost extends Error {}

export class Api {
  #key = null;
  #askForKey;
  #asking = null;

  /** `askForKey(wrong)` resolves to the key that the user gives. */
  constructor(askForKey) {
    this.#askForKey = askForKey;
  }

  /** The JSON of an answer. */
  async json(path, signal) {
    const response = await this.#asked(path, { signal });
    return this.#read(response, () => response.json());
  }

  /** Yield the JSON of each event of an answer; `body` makes it a POST. */
  async *events(path, body, signal) {
    const options = { signal };
    if (body !== undefined) {
      options.method = "POST";
      options.headers = { "content-type": "application/json" };
      options.body = JSON.stringify(body);
    }
    const response = await this.#asked(path, options);
    const events = eventData(response);
    try {
      for (;;) {
        const { value, done } = await this.#read(response, () => events.next());
        if (done) throw new ConnectionLost("the server broke off its answer");
        if (value === "[DONE]") return;
        const event = JSON.parse(value);
        if (event.error) throw new ServerError(200, event.error.message, event.error.code);
        yield event;
      }
    } finally {
      events.return();
    }
  }

  async #asked(path, options) {
    for (;;) {
      const used = this.#key;
      const response = await this.#fetched(path, options);
      if (response.ok) return response;
      if (response.status !== 401) throw await refusal(response);
      // Somebody else may have given the key meanwhile.
      if (this.#key === used) await this.#newKey(used !== null);
      options.signal?.throwIfAborted();
    }
  }

  async #fetched(path, options) {
    const headers = { ...options.headers };
    if (this.#key !== null) headers.authorization = `Bearer ${this.#key}`;
    try {
      return await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    } catch (error) {
      throw lost(error);
    }
  }

  async #read(response, read) {
    try {
      return await read();
    } catch (error) {
      throw error instanceof SyntaxError ? error : lost(error);
    }
  }

  async #newKey(wrong) {
    this.#asking ??= this.#askForKey(wrong).finally(() => (this.#asking = null));
    this.#key = await this.#asking;
  }
}

function lost(error) {
  return error.name === "AbortError" ? error : new ConnectionLost("the server cannot be reached");
}

async function refusal(response) {
  let message = `${response.status} ${response.statusText}`;
  let code = null;
  try {
    const { error } = await response.json();
    message = error.message;
    code = error.code;
  } catch {
    // Something between the server and this page answered.
  }
  return new ServerError(response.status, message, code);
}
