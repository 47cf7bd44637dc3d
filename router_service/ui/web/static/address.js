/** The page's address names the view, its filters, and the open dialog, as in
 * `#overview?team=search` and `#live?open=dec_1`. */

/** @typedef {{view: string, filters: Record<string, string>, dialog: string | null}} Address
 * `dialog` names what the view's dialog shows; null if it is closed */

const DIALOG = "open";

/** The pending step back: where it leads to, and the address that this place gets; null if none is
 * pending.
 * @type {{to: string, address: string, done: Promise<void>, settle: () => void} | null} */
let back = null;

// This module is loaded before the page listens, so the address is complete when the page follows it.
addEventListener("popstate", () => {
  if (back === null) return;
  if (location.hash !== back.to) {
    back.address = location.hash; // a link was followed meanwhile
    return;
  }
  history.replaceState(history.state, "", back.address);
  back.settle();
  back = null;
});

/** @returns {Address} */
export function readAddress() {
  const [view, query] = location.hash.slice(1).split("?");
  const { [DIALOG]: dialog = null, ...filters } = Object.fromEntries(new URLSearchParams(query));
  return { view, filters, dialog };
}

/** @param {string} view @param {Record<string, string>} filters @returns {string} the fragment */
export function addressOf(view, filters) {
  const query = new URLSearchParams(filters).toString();
  return `#${view}${query && `?${query}`}`;
}

/** Writes the filters of a view into the address, if the view is shown. No step back is added.
 * @param {string} view @param {Record<string, string>} filters */
export function keepFilters(view, filters) {
  const { view: shown, dialog } = readAddress();
  if (shown !== view) return;
  if (back !== null) back.address = addressOf(view, filters);
  const all = dialog === null ? filters : { ...filters, [DIALOG]: dialog };
  history.replaceState(history.state, "", addressOf(view, all));
}

/** Adds a view as a step that Back undoes.
 * @param {string} view @param {Record<string, string>} filters */
export async function enterView(view, filters) {
  await back?.done;
  history.pushState(null, "", addressOf(view, filters));
}

/** Names the dialog that opens, as a step that Back undoes.
 * @param {string} name */
export async function enterDialog(name) {
  await back?.done;
  const { view, filters, dialog } = readAddress();
  if (dialog === name) return;
  const address = addressOf(view, { ...filters, [DIALOG]: name });
  // From one dialog to the next, Back closes instead of returning to the first one.
  if (dialog === null) history.pushState({ before: location.hash }, "", address);
  else history.replaceState(history.state, "", address);
}

/** Removes the dialog that is closed, and keeps filters that were chosen since it was opened. A
 * dialog that was opened by its address, such as a link, has no step back. */
export function leaveDialog() {
  const { view, filters, dialog } = readAddress();
  if (dialog === null || back !== null) return;
  const to = history.state?.before;
  if (to === undefined) {
    history.replaceState(null, "", addressOf(view, filters));
    return;
  }
  let settle = () => {};
  const done = new Promise((/** @type {(value: void) => void} */ resolve) => {
    settle = resolve;
  });
  back = { to, address: addressOf(view, filters), done, settle };
  history.back();
}

/** Forgets the dialog without a step back, before the page is loaded again. */
export function forgetDialog() {
  const { view, filters } = readAddress();
  history.replaceState(null, "", addressOf(view, filters));
}
