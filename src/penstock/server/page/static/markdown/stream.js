import { oncePerFrame } from "../ui/frames.js";
import { Blocks } from "./blocks.js";

const FRAME_MS = 16;
const SHARE = 10; // of the time, at most one part in so many goes into showing

/**
 * Shows a Markdown text that grows. Text is taken at any time and shown with the next frame; only
 * the line that has not ended yet, and the paragraph that it belongs to, are made anew. Where even
 * that takes long, as of a line of a megabyte, it is shown less often.
 */
export class MarkdownStream {
  #blocks;
  #rest = "";
  #pending = "";
  #tentative = false;
  #show;
  #restUntil = 0;
  #timer = 0;

  /** `shown` is called after each change of what is in `root`. */
  constructor(root, shown = () => {}) {
    this.#blocks = new Blocks(root);
    const show = oncePerFrame(() => {
      const began = performance.now();
      this.flush();
      shown();
      this.#restUntil = performance.now() + SHARE * (performance.now() - began - FRAME_MS / 2);
    });
    this.#show = () => {
      const rest = this.#restUntil - performance.now();
      if (rest <= 0) show();
      else if (!this.#timer) this.#timer = setTimeout(() => ((this.#timer = 0), show()), rest);
    };
  }

  add(text) {
    this.#pending += text;
    this.#show();
  }

  /** Show at once what was added. */
  flush() {
    if (this.#pending === "") return;
    const lines = (this.#rest + this.#pending).split("\n");
    this.#pending = "";
    if (this.#tentative) this.#blocks.takeBack();
    this.#rest = lines.pop();
    for (const line of lines) this.#blocks.add(line.replace(/\r$/, ""));
    this.#tentative = this.#rest !== "";
    if (this.#tentative) this.#blocks.tentative(this.#rest);
    this.#blocks.render();
  }
}

/** Put the nodes of a whole Markdown text into `root`. */
export function showMarkdown(root, text) {
  const stream = new Blocks(root);
  for (const line of text.split(/\r?\n/)) stream.add(line);
  stream.render();
}
