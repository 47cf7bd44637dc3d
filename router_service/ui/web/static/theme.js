// Runs before the page is drawn, so that the other theme does not flash.
(() => {
  const KEY = "switchcraft-theme";
  /** @type {Record<string, string>} */
  const NEXT = { auto: "light", light: "dark", dark: "auto" };

  const stored = () => {
    try {
      return localStorage.getItem(KEY) ?? "auto";
    } catch {
      return "auto"; // storage may be forbidden
    }
  };

  const apply = (/** @type {string} */ theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${theme}`;
  };

  const next = () => {
    const theme = NEXT[stored()] ?? "light";
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // then the choice holds only for this page
    }
    apply(theme);
  };

  apply(stored());
  addEventListener("DOMContentLoaded", () => {
    apply(stored());
    document.getElementById("theme")?.addEventListener("click", next);
  });
})();
