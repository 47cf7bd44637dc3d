/** The page's address names the view and its filters, such as `#overview?team=search`. */

/** @returns {{view: string, filters: Record<string, string>}} */
export function readAddress() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view, filters: Object.fromEntries(new URLSearchParams(query)) };
}

/** @param {string} view @param {Record<string, string>} filters @returns {string} the fragment */
export function addressOf(view, filters) {
  const query = new URLSearchParams(filters).toString();
  return `#${view}${query && `?${query}`}`;
}

/** Writes the filters of a view into the address, if the view is shown. No step back is added.
 * @param {string} view @param {Record<string, string>} filters */
export function keepFilters(view, filters) {
  if (readAddress().view === view) history.replaceState(null, "", addressOf(view, filters));
}
