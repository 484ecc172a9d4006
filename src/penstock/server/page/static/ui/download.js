import { element } from "./dom.js";

/** Have the browser save a text as a file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  element("a", { href: url, download: name }).click();
  URL.revokeObjectURL(url);
}
