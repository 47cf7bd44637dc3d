/** Plot of requests: a dot for each, to the right by time, and upwards by latency. */

import { isFailed, outcomeText } from "./decisions.js";
import { s } from "./dom.js";
import { clock, duration } from "./format.js";
import { brief } from "./timeseries.js";

/** @import { ListedRequest } from "../types" */

const MARGIN = { left: 52, right: 12, top: 10, bottom: 26 };
const HEIGHT = 146;

/** Latencies below this one are drawn here, because a log scale has no 0. */
const LEAST_S = 0.0001;

/** @param {ListedRequest[]} requests at least one @param {number} width
 * @param {(id: string) => void} open called with the id of a clicked request */
export function latencyPlot(requests, width, open) {
  const [left, right] = [MARGIN.left, width - MARGIN.right];
  const [top, bottom] = [MARGIN.top, HEIGHT - MARGIN.bottom];
  const logOf = (/** @type {ListedRequest} */ { latency_s }) =>
    Math.log10(Math.max(latency_s, LEAST_S));
  const times = requests.map(({ time }) => time);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const logs = requests.map(logOf);
  const low = Math.floor(Math.min(...logs) * 2) / 2;
  const high = Math.ceil(Math.max(...logs) * 2 + 0.01) / 2;
  const x = (/** @type {number} */ at) =>
    to > from ? left + 6 + ((at - from) / (to - from)) * (right - left - 12) : (left + right) / 2;
  const y = (/** @type {number} */ log) => bottom - ((log - low) / (high - low)) * (bottom - top);
  const failed = requests.filter(isFailed).length;
  return s(
    "svg",
    {
      class: "timeseries",
      viewBox: `0 0 ${width} ${HEIGHT}`,
      role: "img",
      "aria-label": `Latency of ${requests.length} requests between ${clock(from)} and ${clock(to)}, of which ${failed} failed. The table below has the same requests.`,
    },
    ...decades(low, high).map((log) =>
      s(
        "g",
        {},
        s("line", { class: "grid", x1: left, x2: right, y1: y(log), y2: y(log) }),
        s("text", { x: left - 8, y: y(log) + 4, "text-anchor": "end" }, brief(duration(10 ** log))),
      ),
    ),
    s("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
    ...ticks(from, to, width).map(({ at, anchor }) =>
      s("text", { x: x(at), y: bottom + 18, "text-anchor": anchor }, clock(at)),
    ),
    // Failed requests come last, so that no other dot covers them.
    ...[...requests]
      .sort((a, b) => Number(isFailed(a)) - Number(isFailed(b)))
      .map((request) =>
        s(
          "circle",
          {
            class: isFailed(request) ? "decision bad" : "decision",
            cx: x(request.time),
            cy: y(logOf(request)),
            r: 4,
            onclick: () => open(request.id),
          },
          s(
            "title",
            {},
            `${clock(request.time)}, ${request.model}: ${duration(request.latency_s)}, ${outcomeText(request)}`,
          ),
        ),
      ),
  );
}

/** @param {number} low @param {number} high
 * @returns {number[]} the integers between two logarithms */
const decades = (low, high) =>
  Array.from(
    { length: Math.floor(high) - Math.ceil(low) + 1 },
    (_, index) => Math.ceil(low) + index,
  );

/** Times below the axis, and how their labels are aligned.
 * @param {number} from @param {number} to @param {number} width */
function ticks(from, to, width) {
  if (to === from) return [{ at: from, anchor: "middle" }];
  // Labels show seconds, so they are at least one second apart.
  const gaps = Math.min(width < 500 ? 2 : 4, Math.floor(to - from));
  return Array.from({ length: gaps + 1 }, (_, index) => ({
    at: from + ((to - from) * index) / (gaps || 1),
    anchor: index === 0 ? "start" : index === gaps ? "end" : "middle",
  }));
}
