// Charts over time on a canvas: stacked areas of what adds up, lines of what does not.

import { WINDOW_S } from "./history.js";

const LEFT = 46; // pixels for the scale's numbers
const BOTTOM = 18;
const TOP = 6;
const RIGHT = 4;

/** The least of 1, 2, 2.5 and 5 times a power of ten that is not below `value`. */
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 2.5, 5, 10].find((each) => each * power >= value * 0.9999);
  return factor * power;
}

/**
 * Draws samples of `history.js` into a canvas. `series` are `{key, color, dash}`, with the name of a
 * custom property of the page as the colour; `stacked` puts each upon those before; `most` is
 * the scale's end, where it is known; `format` writes the scale's numbers.
 */
export class Chart {
  constructor(canvas, { series, stacked = false, most = null, format, points = false }) {
    Object.assign(this, { canvas, series, stacked, most, format, points });
    this.at = null; // the pointer's place, in pixels
  }

  /** The sample under the pointer, or the latest; of values that come now and then, the last. */
  sampleAt(samples) {
    if (this.at === null || !samples.length) {
      const valued =
        this.points && samples.findLast((each) => this.series.some(({ key }) => Number.isFinite(each[key])));
      return valued || (samples.at(-1) ?? null);
    }
    const time = this.#time(this.at, samples);
    return samples.find((each) => each.to >= time) ?? samples.at(-1);
  }

  draw(samples) {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = canvas;
    if (!width || !height) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    this.width = width - LEFT - RIGHT;
    this.height = height - TOP - BOTTOM;
    this.style = getComputedStyle(canvas);
    this.top = this.#top(samples);
    this.#scale(context, width);
    context.save();
    context.beginPath();
    context.rect(LEFT, TOP - 2, this.width + RIGHT, this.height + 4);
    context.clip();
    if (this.stacked) this.#areas(context, samples);
    else this.#lines(context, samples);
    context.restore();
    if (this.at !== null && samples.length) this.#pointer(context);
  }

  #top(samples) {
    if (this.most !== null) return this.most(samples);
    let top = 0;
    for (const sample of samples) {
      const values = this.series.map(({ key }) => sample[key] || 0);
      top = Math.max(top, this.stacked ? values.reduce((sum, each) => sum + each, 0) : Math.max(...values));
    }
    return niceCeiling(top);
  }

  #color(name) {
    return this.style.getPropertyValue(name).trim();
  }

  #scale(context, width) {
    context.font = `11px ${this.style.fontFamily}`;
    context.fillStyle = this.#color("--faint");
    context.strokeStyle = this.#color("--line");
    context.lineWidth = 1;
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(TOP + this.height * (1 - share)) + 0.5;
      context.beginPath();
      context.moveTo(LEFT, y);
      context.lineTo(width - RIGHT, y);
      context.stroke();
      context.fillText(this.format(this.top * share), LEFT - 6, y);
    }
    context.textBaseline = "alphabetic";
    const y = TOP + this.height + 14;
    context.textAlign = "left";
    context.fillText(`−${WINDOW_S} s`, LEFT, y);
    context.textAlign = "center";
    context.fillText(`−${WINDOW_S / 2} s`, LEFT + this.width / 2, y);
    context.textAlign = "right";
    context.fillText("now", width - RIGHT, y);
  }

  #x(time, samples) {
    return LEFT + this.width * (1 - (samples.at(-1).to - time) / WINDOW_S);
  }

  #time(x, samples) {
    return samples.at(-1).to - WINDOW_S * (1 - (x - LEFT) / this.width);
  }

  #y(value) {
    return TOP + this.height * (1 - value / this.top);
  }

  #areas(context, samples) {
    const base = samples.map(() => 0);
    for (const { key, color } of this.series) {
      context.fillStyle = this.#color(color);
      context.beginPath();
      // One shape of all samples: rectangles side by side would show seams.
      samples.forEach((sample, i) => {
        const y = this.#y(base[i] + (sample[key] || 0));
        context.lineTo(this.#x(sample.from, samples), y);
        context.lineTo(this.#x(sample.to, samples), y);
      });
      for (let i = samples.length - 1; i >= 0; i -= 1) {
        const y = this.#y(base[i]);
        context.lineTo(this.#x(samples[i].to, samples), y);
        context.lineTo(this.#x(samples[i].from, samples), y);
        base[i] += samples[i][key] || 0;
      }
      context.fill();
    }
  }

  #lines(context, samples) {
    context.lineWidth = 1.75;
    context.lineJoin = "round";
    for (const { key, color, dash = [] } of this.series) {
      context.strokeStyle = this.#color(color);
      context.fillStyle = context.strokeStyle;
      context.setLineDash(dash);
      context.beginPath();
      let drawn = false;
      for (const sample of samples) {
        if (!Number.isFinite(sample[key])) {
          drawn = drawn && this.points;
          continue;
        }
        const x = this.#x(sample.to, samples);
        const y = this.#y(sample[key]);
        if (drawn) context.lineTo(x, y);
        else context.moveTo(x, y);
        drawn = true;
      }
      context.stroke();
      if (this.points) this.#dots(context, samples, key);
    }
    context.setLineDash([]);
  }

  #dots(context, samples, key) {
    for (const sample of samples) {
      if (!Number.isFinite(sample[key])) continue;
      context.beginPath();
      context.arc(this.#x(sample.to, samples), this.#y(sample[key]), 2, 0, 2 * Math.PI);
      context.fill();
    }
  }

  #pointer(context) {
    const x = Math.round(Math.min(Math.max(this.at, LEFT), LEFT + this.width)) + 0.5;
    context.strokeStyle = this.#color("--faint");
    context.beginPath();
    context.moveTo(x, TOP);
    context.lineTo(x, TOP + this.height);
    context.stroke();
  }
}
