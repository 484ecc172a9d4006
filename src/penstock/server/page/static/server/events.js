// Server-sent events out of the body of a response. EventSource can send no key.

/** Yield the data of each event of a response, as text. */
export async function* eventData(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Cuts a stream of text into events, of which the server's have one line of data each. */
class EventParser {
  #rest = "";

  /** Yield the data of the events that `text` completes. */
  *feed(text) {
    const lines = (this.#rest + text).split(/\r?\n/);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) yield line.slice(line[5] === " " ? 6 : 5);
    }
  }
}
