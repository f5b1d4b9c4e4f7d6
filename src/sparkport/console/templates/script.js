"use strict";
(() => {
  const main = document.querySelector("main[data-live]");
  const button = document.getElementById("live");
  if (!main || !button) return;
  let on = true;
  button.hidden = false;
  button.addEventListener("click", () => {
    on = !on;
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "Live" : "Paused";
  });
  const busy = () => {
    const focused = document.activeElement;
    const typing = main.contains(focused) && focused.matches("input, select, textarea");
    return typing || main.querySelector("details[open]") !== null;
  };
  const refresh = async () => {
    if (!on || document.hidden || busy()) return;
    const answer = await fetch(location.href, { cache: "no-store", redirect: "manual" });
    if (answer.type === "opaqueredirect") return location.reload();
    if (!answer.ok) return;
    // The style has another nonce than this page's, and nobody needs it again.
    const text = (await answer.text()).replace(/<style[^]*?<\/style>/, "");
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const next = fresh.querySelector("main[data-live]");
    if (!next || busy()) return;
    next.querySelector(".notice[role=status]")?.remove();
    const focused = document.activeElement;
    const place = main.contains(focused) ? focused.closest("[id]")?.id : "";
    const scrolled = [...main.querySelectorAll(".scroll")].map((part) => part.scrollLeft);
    main.replaceChildren(...next.childNodes);
    main.querySelectorAll(".scroll").forEach((part, at) => { part.scrollLeft = scrolled[at] || 0; });
    if (place && place !== "main") document.getElementById(place)?.focus({ preventScroll: true });
    const state = fresh.querySelector(".who .state");
    if (state) document.querySelector(".who .state")?.replaceWith(state);
  };
  setInterval(() => { refresh().catch(() => {}); }, Number(main.dataset.live) * 1000);
})();
