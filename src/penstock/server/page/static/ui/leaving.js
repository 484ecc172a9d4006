// Leaving the page, or loading it anew: the browser then breaks off what the page has asked for.

const LONG_MS = 5000; // a page that is still there by then is not being left

/** Knows whether the page is being left. Some browsers break off long before they say `pagehide`. */
export class Leaving {
  #began = -Infinity;

  constructor(window) {
    for (const type of ["beforeunload", "pagehide"]) {
      window.addEventListener(type, () => (this.#began = performance.now()));
    }
  }

  get now() {
    return performance.now() - this.#began < LONG_MS;
  }
}
