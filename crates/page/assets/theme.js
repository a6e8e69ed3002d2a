// Light and dark, and paper: what a page does when the scheme changes, and how its charts are drawn in it.
"use strict";

(() => {
  const FONT = "12px system-ui, sans-serif";

  /** An axis of a chart, in the present colours. */
  Seam.axis = (more) => ({
    stroke: Seam.css("text"),
    font: FONT,
    labelFont: FONT,
    grid: { stroke: Seam.css("grid"), width: 1 },
    ticks: { stroke: Seam.css("line"), width: 1, size: 5 },
    ...more,
  });

  /** Has `button` change between light and dark, and calls `recolour` after any change, also when the page is printed. */
  Seam.theme = (button, recolour) => {
    const named = () => (button.textContent = Seam.isDark() ? "Light" : "Dark");
    button.addEventListener("click", () => {
      document.documentElement.dataset.theme = Seam.isDark() ? "light" : "dark";
      named();
      recolour();
    });
    named();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (named(), recolour()));
    // Paper is white and narrow, and waits for no frame.
    let screen;
    const print = (printing) => {
      const root = document.documentElement;
      if (printing) screen = root.dataset.theme;
      root.classList.toggle("printing", printing);
      if (printing) root.dataset.theme = "light";
      else if (screen) root.dataset.theme = screen;
      else delete root.dataset.theme;
      recolour();
    };
    addEventListener("beforeprint", () => print(true));
    addEventListener("afterprint", () => print(false));
  };
})();
