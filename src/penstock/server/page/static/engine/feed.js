import { ConnectionLost, ServerError } from "../server/api.js";

const SILENCE_MS = 6000; // the server sends at least once in two seconds
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 5000;

/**
 * The engine's snapshots as they come, for as long as the page can be seen. `heard(snapshot)` is
 * called for each, `lost(message)` when the server does not answer, and `found()` when it does again.
 */
export class Feed {
  #api;
  #listeners;
  #controller = null;
  #isLost = false;

  constructor(api, listeners) {
    this.#api = api;
    this.#listeners = listeners;
    document.addEventListener("visibilitychange", () => this.#update());
    this.#update();
  }

  #update() {
    if (document.hidden) {
      this.#controller?.abort();
      this.#controller = null;
    } else if (!this.#controller) {
      this.#controller = new AbortController();
      this.#run(this.#controller.signal);
    }
  }

  async #run(signal) {
    let pause = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      try {
        await this.#listen(signal, () => (pause = FIRST_PAUSE_MS));
      } catch (error) {
        if (signal.aborted) return;
        if (!(error instanceof ServerError || error instanceof ConnectionLost)) throw error;
        this.#isLost = true;
        this.#listeners.lost(error.message);
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    }
  }

  async #listen(signal, heard) {
    const silent = new AbortController();
    let timer = setTimeout(() => silent.abort(), SILENCE_MS);
    try {
      const either = AbortSignal.any([signal, silent.signal]);
      for await (const snapshot of this.#api.events("/engine/events", undefined, either)) {
        clearTimeout(timer);
        timer = setTimeout(() => silent.abort(), SILENCE_MS);
        heard();
        if (this.#isLost) this.#listeners.found();
        this.#isLost = false;
        this.#listeners.heard(snapshot);
      }
    } catch (error) {
      throw silent.signal.aborted ? new ConnectionLost("the server is silent") : error;
    } finally {
      clearTimeout(timer);
    }
  }
}
