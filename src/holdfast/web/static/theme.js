// Sets the chosen theme before anything is painted. A plain script, since modules come too late for that.
(() => {
  try {
    const chosen = localStorage.getItem("holdfast.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage that is switched off means that there is no choice to remember.
  }
})();
