/** The browser's local storage or, where it may not be used, one in memory with the same methods. */
export function browserStorage() {
  try {
    window.localStorage.getItem("penstock");
    return window.localStorage;
  } catch {
    return new MemoryStorage();
  }
}

class MemoryStorage {
  #entries = new Map();

  get length() {
    return this.#entries.size;
  }

  key(index) {
    return [...this.#entries.keys()][index] ?? null;
  }

  getItem(key) {
    return this.#entries.get(key) ?? null;
  }

  setItem(key, value) {
    this.#entries.set(key, value);
  }

  removeItem(key) {
    this.#entries.delete(key);
  }
}
