import { element, replaceChildren } from "../ui/dom.js";
import { seconds } from "../ui/format.js";
import { Chart } from "./chart.js";
import { HEADLINES, PANELS } from "./panels.js";

/** What the engine does, drawn as it happens. */
export class EngineView {
  constructor(history, card) {
    this.history = history;
    this.visible = false;
    this.drafts = null; // whether panels of speculation are shown
    this.state = element("p", { className: "engine-state", attributes: { role: "status" } });
    this.headlines = element("dl", { className: "headlines" });
    this.panels = element("div", { className: "panels" });
    this.title = element("h1", { tabIndex: -1 }, "Engine");
    this.element = element(
      "div",
      { className: "engine" },
      element("header", {}, this.title, element("span", { className: "note" }, card.id), this.state),
      this.headlines,
      this.panels,
    );
    window.addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    this.#build(false);
  }

  focus() {
    this.title.focus();
  }

  stop() {
    return false;
  }

  set shown(shown) {
    this.visible = shown;
    this.draw();
  }

  /** Draw what there is, where it can be seen. */
  draw() {
    const { latest, samples } = this.history;
    this.#tell(latest);
    if (latest?.engine && Boolean(latest.engine.drafts) !== this.drafts)
      this.#build(Boolean(latest.engine.drafts));
    if (!this.visible) return;
    for (const { node, value } of this.numbers) node.textContent = value(this.history);
    for (const { panel, chart, values, canvas } of this.drawn) {
      chart.draw(samples);
      const sample = chart.sampleAt(samples);
      const texts = panel.series.map(({ key }) => text(panel, sample?.[key]));
      texts.forEach((each, i) => (values[i].textContent = each));
      canvas.setAttribute(
        "aria-label",
        `${panel.title}, ${panel.note}: ${panel.series.map(({ label }, i) => `${label} ${texts[i]}`).join(", ")}`,
      );
    }
  }

  #tell(latest) {
    let told = "";
    if (latest?.trouble) told = latest.trouble;
    else if (latest && !latest.engine) told = `in one step for ${seconds(latest.step_seconds)}`;
    if (this.state.textContent !== told) this.state.textContent = told;
  }

  #build(drafts) {
    this.drafts = drafts;
    const wanted = (each) => drafts || !each.drafts;
    this.numbers = HEADLINES.filter(wanted).map(({ label, unit, value }) => {
      const node = element("dd", { className: "value" }, "–");
      const part = element(
        "div",
        {},
        element("dt", {}, label),
        node,
        element("dd", { className: "unit" }, unit),
      );
      return { node, value, part };
    });
    replaceChildren(
      this.headlines,
      this.numbers.map(({ part }) => part),
    );
    this.drawn = PANELS.filter(wanted).map((panel) => this.#panel(panel));
    replaceChildren(
      this.panels,
      this.drawn.map(({ part }) => part),
    );
  }

  #panel(panel) {
    const canvas = element("canvas", { attributes: { role: "img" } });
    const values = panel.series.map(() => element("dd", {}, "–"));
    const legend = panel.series.map(({ label, color, dash }, i) =>
      element(
        "div",
        {},
        element(
          "dt",
          {},
          element("span", { className: `swatch ${color.slice(2)} ${dash ? "dashed" : ""}` }),
          label,
        ),
        values[i],
      ),
    );
    const part = element(
      "section",
      { className: "panel", attributes: { "aria-label": panel.title } },
      element(
        "header",
        {},
        element("h2", {}, panel.title),
        element("span", { className: "note" }, panel.note),
      ),
      canvas,
      element("dl", { className: "legend" }, legend),
    );
    const chart = new Chart(canvas, panel);
    canvas.addEventListener("pointermove", (event) => {
      chart.at = event.offsetX;
      this.draw();
    });
    canvas.addEventListener("pointerleave", () => {
      chart.at = null;
      this.draw();
    });
    return { panel, chart, values, canvas, part };
  }
}

function text(panel, value) {
  return Number.isFinite(value) ? panel.value(value) : "–";
}
