/** Chart of latencies over time: the darker a cell, the more requests took that long. */

import { s } from "./dom.js";
import { count, duration } from "./format.js";
import { brief, HEIGHT, line, MARGIN, TimeChart, timeAxis } from "./timeseries.js";

/** @import { LatencyMap } from "../types" */
/** @import { Data } from "./timeseries.js" */

const MOST_LABELS = 5;
/** Opacity of a cell with one of many requests. */
const FAINTEST = 0.16;

export class HeatMap extends TimeChart {
  /** @type {LatencyMap} */
  latencies = { bounds_s: [], counts: [] };

  /** @param {Data} data lines that are drawn over the cells @param {LatencyMap} latencies */
  showMap(data, latencies) {
    this.latencies = latencies;
    this.show(data);
  }

  /** @param {Data} data @param {number} width @returns {SVGElement} */
  drawn(data, width) {
    const { bounds_s, counts } = this.latencies;
    const [left, right, bottom] = [MARGIN.left, width - MARGIN.right, HEIGHT - MARGIN.bottom];
    const rows = bounds_s.length - 1;
    const each = (right - left) / counts.length;
    const height = (bottom - MARGIN.top) / rows;
    const most = Math.max(0, ...counts.flat());
    const [low, high] = [bounds_s[0], bounds_s[rows]];
    const y = (/** @type {number} */ seconds) =>
      bottom -
      (Math.log(Math.min(Math.max(seconds, low), high) / low) / Math.log(high / low)) *
        (bottom - MARGIN.top);
    const cells = counts.flatMap((row, bin) =>
      row.flatMap((requests, place) =>
        requests === 0
          ? []
          : [
              s("rect", {
                class: "cell",
                x: left + bin * each,
                width: Math.max(1, each - 0.5),
                y: bottom - (place + 1) * height,
                height: height - 0.5,
                "fill-opacity": (
                  FAINTEST +
                  (1 - FAINTEST) * (Math.log1p(requests) / Math.log1p(most))
                ).toFixed(2),
              }),
            ],
      ),
    );
    return s(
      "svg",
      {
        class: "timeseries heat",
        viewBox: `0 0 ${width} ${HEIGHT}`,
        role: "img",
        "aria-label": this.description(data, most),
      },
      ...timeAxis(data, width),
      ...cells,
      ...labels(low, high).map((seconds) =>
        s(
          "g",
          {},
          s("line", { class: "grid", x1: left, x2: right, y1: y(seconds), y2: y(seconds) }),
          s(
            "text",
            { x: left - 8, y: y(seconds) + 4, "text-anchor": "end" },
            brief(duration(seconds)),
          ),
        ),
      ),
      s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      ...data.series.flatMap(({ style, values }) =>
        line(values, style, (bin) => left + (bin + 0.5) * each, y).filter(
          // Cells show where requests are, so nothing needs to lead there.
          (shape) => !shape.classList.contains("gap"),
        ),
      ),
    );
  }

  /** @param {Data} data @param {number} most requests of one cell */
  description({ series }, most) {
    const ranges = series.map(({ name, values }) => {
      const known = values.filter((value) => value !== null);
      return known.length === 0
        ? `${name}: none`
        : `${name}: ${duration(Math.min(...known))} to ${duration(Math.max(...known))}`;
    });
    return `${this.title} over time. ${ranges.join("; ")}. A cell has up to ${count(most)} requests. The table below has all values.`;
  }
}

/** @param {number} low @param {number} high @returns {number[]} a few round latencies between both */
function labels(low, high) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const found = Array.from({ length: last - first + 1 }, (_, index) => first + index)
      .flatMap((power) => steps.map((step) => step * 10 ** power))
      .filter((seconds) => seconds >= low && seconds <= high);
    if (found.length <= MOST_LABELS) return found;
  }
  return [];
}
