/** Charts over time: bars and lines above a time axis, and the values of the pointed bin. */

import { h, s } from "./dom.js";

export const MARGIN = { left: 62, right: 10, top: 8, bottom: 24 };
export const HEIGHT = 170;
const MIN_LABEL_WIDTH = 64;

/** Values of one kind. Bars are stacked; an outline is drawn around what the bars could be.
 * @typedef {object} Series
 * @property {string} name
 * @property {"bar" | "outline" | "line"} kind
 * @property {string} style
 * @property {(number | null)[]} values */

/** One value of each series for each start, in Unix seconds.
 * @typedef {object} Data
 * @property {number[]} starts
 * @property {number} step_s
 * @property {Series[]} series
 * @property {(value: number) => string} format
 * @property {number[]} [ticks] values of the grid, from the axis to the top; by default, round ones
 *   from 0 to the largest value */

/** A chart with a title, which is as wide as its place. */
export class TimeChart {
  plot = h("div", { class: "plot" });
  readout = h("p", { class: "readout" });
  /** @type {Data | undefined} */
  data;

  /** @param {string} title */
  constructor(title) {
    this.title = title;
    this.element = h(
      "section",
      { class: "card time-chart" },
      h("div", { class: "chart-head" }, h("h3", { class: "eyebrow" }, title), this.readout),
      this.plot,
    );
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  /** @param {Data} data */
  show(data) {
    this.data = data;
    this.draw();
    this.readout.replaceChildren(...values(data, null));
  }

  draw() {
    const width = this.plot.clientWidth;
    if (this.data && width) this.plot.replaceChildren(this.drawn(this.data, width));
  }

  /** @param {Data} data @param {number} width @returns {SVGElement} */
  drawn(data, width) {
    return drawn(this.title, data, width);
  }

  /** Marks the bin under the pointer, and reads out its values.
   * @param {PointerEvent} event */
  point(event) {
    if (!this.data) return;
    const bins = this.data.starts.length;
    const at =
      (event.clientX - this.plot.getBoundingClientRect().left - MARGIN.left) /
      (this.plot.clientWidth - MARGIN.left - MARGIN.right);
    const bin = Math.max(0, Math.min(bins - 1, Math.floor(at * bins)));
    this.unmark();
    this.plot.querySelectorAll(".bin")[bin]?.classList.add("pointed");
    this.readout.replaceChildren(...values(this.data, bin));
  }

  leave() {
    this.unmark();
    if (this.data) this.readout.replaceChildren(...values(this.data, null));
  }

  unmark() {
    this.plot.querySelector(".pointed")?.classList.remove("pointed");
  }
}

/** @param {Data} data @param {number | null} bin the pointed bin, or null for the legend alone */
function values(data, bin) {
  const entries = data.series.map(({ name, style, values }) => {
    const value = bin === null ? null : values[bin];
    return h(
      "span",
      { class: `entry ${style}` },
      h("i", { class: "swatch" }),
      name,
      bin !== null && h("b", {}, ` ${value === null ? "none" : data.format(value)}`),
    );
  });
  return bin === null
    ? entries
    : [h("span", { class: "when" }, timeLabel(data.starts[bin], data.step_s, true)), ...entries];
}

/** @param {string} title @param {Data} data @param {number} width @returns {SVGElement} */
function drawn(title, data, width) {
  const { starts, series } = data;
  const [left, right, bottom] = [MARGIN.left, width - MARGIN.right, HEIGHT - MARGIN.bottom];
  const each = (right - left) / starts.length;
  const top = Math.max(
    ...starts.map((_, bin) =>
      Math.max(
        stacked(series, bin),
        ...series.filter(({ kind }) => kind !== "bar").map(({ values }) => values[bin] ?? 0),
      ),
    ),
  );
  const ticks = data.ticks ?? niceTicks(top);
  const [lowest, highest] = [ticks[0], ticks[ticks.length - 1]];
  const y = (/** @type {number} */ value) =>
    bottom - ((value - lowest) / (highest - lowest)) * (bottom - MARGIN.top);
  const x = (/** @type {number} */ bin) => left + bin * each;
  return s(
    "svg",
    {
      class: "timeseries",
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "img",
      "aria-label": description(title, data),
    },
    ...ticks.map((tick) =>
      s(
        "g",
        {},
        s("line", {
          class: tick === lowest ? "axis" : "grid",
          x1: left,
          x2: right,
          y1: y(tick),
          y2: y(tick),
        }),
        top > 0 &&
          s(
            "text",
            { x: left - 8, y: y(tick) + 4, "text-anchor": "end" },
            brief(data.format(tick)),
          ),
      ),
    ),
    ...timeAxis(data, width),
    ...series
      .filter(({ kind }) => kind === "bar")
      .flatMap((bar, index, bars) =>
        bar.values.map((value, bin) => {
          const below = stacked(bars.slice(0, index), bin);
          const height = y(below) - y(below + (value ?? 0));
          return (
            height > 0 &&
            s("rect", {
              class: `bar-of ${bar.style}`,
              x: x(bin) + Math.min(1.5, each * 0.12),
              width: Math.max(1, each - Math.min(3, each * 0.24)),
              y: y(below) - Math.max(height, 1),
              height: Math.max(height, 1),
              rx: Math.min(2, each / 4),
            })
          );
        }),
      )
      .filter((shape) => shape instanceof Node),
    ...series
      .filter(({ kind }) => kind === "outline")
      .map(({ style, values }) =>
        s("path", {
          class: `outline-of ${style}`,
          d: values
            .map(
              (value, bin) =>
                `${bin === 0 ? "M" : "L"}${x(bin).toFixed(1)} ${y(value ?? 0).toFixed(1)}H${x(bin + 1).toFixed(1)}`,
            )
            .join(""),
        }),
      ),
    ...series
      .filter(({ kind }) => kind === "line")
      .reverse() // the first one is on top
      .flatMap(({ style, values }) => line(values, style, (bin) => x(bin) + each / 2, y)),
  );
}

/** A line through all values, which is dashed across bins without any. A value between two such
 * bins is a dot.
 * @param {(number | null)[]} values @param {string} style @param {(bin: number) => number} x
 * @param {(value: number) => number} y @returns {SVGElement[]} */
export function line(values, style, x, y) {
  const known = values.flatMap((value, bin) => (value === null ? [] : [{ value, bin }]));
  const at = (/** @type {{ value: number, bin: number }} */ { value, bin }) =>
    `${x(bin).toFixed(1)} ${y(value).toFixed(1)}`;
  const isNext = (/** @type {number} */ index) =>
    index > 0 && known[index].bin === known[index - 1].bin + 1;
  const solid = known.map((each, index) => `${isNext(index) ? "L" : "M"}${at(each)}`);
  const dashed = known.map((each, index) =>
    index === 0 || isNext(index) ? "" : `M${at(known[index - 1])}L${at(each)}`,
  );
  const single = known.filter(
    (_, index) => !isNext(index) && !(index + 1 < known.length && isNext(index + 1)),
  );
  return [
    s("path", { class: `line-of gap ${style}`, d: dashed.join("") }),
    s("path", { class: `line-of ${style}`, d: solid.join("") }),
    ...single.map(({ value, bin }) =>
      s("circle", { class: `dot-of ${style}`, cx: x(bin), cy: y(value), r: 4.5 }),
    ),
  ];
}

/** Labels below the axis, and a rectangle for each bin, which is marked under the pointer.
 * @param {Pick<Data, "starts" | "step_s">} data @param {number} width @returns {SVGElement[]} */
export function timeAxis({ starts, step_s }, width) {
  const right = width - MARGIN.right;
  const each = (right - MARGIN.left) / starts.length;
  const x = (/** @type {number} */ bin) => MARGIN.left + bin * each;
  return [
    ...labelled({ starts, step_s }, width).map((bin) =>
      s(
        "text",
        { x: Math.min(x(bin) + each / 2, right - 18), y: HEIGHT - 6, "text-anchor": "middle" },
        timeLabel(starts[bin], step_s),
      ),
    ),
    ...starts.map((_, bin) =>
      s("rect", {
        class: "bin",
        x: x(bin),
        y: MARGIN.top,
        width: each,
        height: HEIGHT - MARGIN.bottom - MARGIN.top,
      }),
    ),
  ];
}

/** @param {Series[]} series @param {number} bin @returns {number} height of the bars */
const stacked = (series, bin) =>
  series.reduce((sum, { kind, values }) => sum + (kind === "bar" ? (values[bin] ?? 0) : 0), 0);

/** @param {number} top @returns {number[]} two to four round values from 0 to at least `top` */
function niceTicks(top) {
  if (!(top > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(top / 2));
  const step =
    [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => top / each <= 3) ?? top;
  return Array.from({ length: Math.ceil(top / step - 1e-9) + 1 }, (_, index) => index * step);
}

/** Removes zeros that say nothing: 2.50 s becomes 2.5 s, and 0.0 ms becomes 0.
 * @param {string} value @returns {string} */
export const brief = (value) =>
  value.startsWith("$")
    ? value.replace(/\.00$/, "")
    : value
        .replace(/\.(\d*?)0+(?=\D|$)/, (_, digits) => (digits ? `.${digits}` : ""))
        .replace(/^0 ?(ms|%)$/, "0");

/** @param {Pick<Data, "starts" | "step_s">} data @param {number} width
 * @returns {number[]} bins whose start is written below the axis */
function labelled({ starts, step_s }, width) {
  const most = Math.max(2, Math.floor((width - MARGIN.left) / MIN_LABEL_WIDTH));
  const steps =
    step_s < 3600
      ? [1, 2, 5, 10, 15, 30]
      : step_s < 86400
        ? [1, 2, 3, 6, 12]
        : [1, 2, 3, 5, 7, 10, 15];
  const every = steps.find((count) => starts.length / count <= most) ?? steps[steps.length - 1];
  const number = (/** @type {number} */ start) => {
    const date = new Date(start * 1000);
    if (step_s < 3600) return date.getMinutes();
    return step_s < 86400
      ? date.getHours()
      : Math.round((starts[starts.length - 1] - start) / 86400);
  };
  return starts
    .map((start, bin) => (number(start) % every === 0 ? bin : -1))
    .filter((bin) => bin >= 0);
}

/** @param {number} start @param {number} step_s @param {boolean} [isLong]
 * @returns {string} days are those of UTC */
export function timeLabel(start, step_s, isLong = false) {
  const date = new Date(start * 1000);
  if (step_s >= 86400)
    return date.toLocaleDateString("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
  const time = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return isLong && step_s >= 3600
    ? `${date.toLocaleDateString("en-GB", { weekday: "short" })} ${time}`
    : time;
}

/** @param {string} title @param {Data} data */
function description(title, { starts, step_s, series, format }) {
  const parts = series.map(({ name, values }) => {
    const highest = Math.max(...values.map((value) => value ?? 0));
    return highest > 0
      ? `${name}: at most ${format(highest)}, at ${timeLabel(starts[values.indexOf(highest)], step_s, true)}`
      : `${name}: none`;
  });
  return `${title} over time. ${parts.join("; ")}. The table below has all values.`;
}
